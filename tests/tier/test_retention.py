"""Retention over two tiers, as tables. Segments hold ten offsets and 1,000 bytes each unless said; it is time 1,000."""

import pytest

from tests.tier.segments import remote, view
from tidelog.tier.retention import (
    Retention,
    local_only_bytes,
    local_start,
    log_start,
    may_copy,
    next_to_copy,
    overdue_bytes,
    roll_after_ms,
)

NOW = 1_000
ANY = 10**9
"""A commit index behind everything."""


def remotes(*times: int) -> list:
    return [remote(n * 10, n * 10 + 9, newest_timestamp=time) for n, time in enumerate(times)]


def locals_(first: int, *times: int) -> list:
    return [view(n * 10, n * 10 + 10, newest=time) for n, time in enumerate(times, first)]


@pytest.mark.parametrize(
    ("why", "remote_times", "local", "total_ms", "total_bytes", "start"),
    [
        ("no bound keeps everything", [1, 2, 3], locals_(3, 4), -1, -1, None),
        ("all are young", [900, 950], locals_(2, 990), 500, -1, None),
        ("one is old", [100, 950], locals_(2, 990), 500, -1, 10),
        ("all remote ones are old", [100, 200], locals_(2, 300), 500, -1, 20),
        ("a young one before an old one protects it", [900, 100], locals_(2, 990), 500, -1, None),
        ("one without a time goes with the next", [-1, 100, 900], locals_(3, 990), 500, -1, 20),
        ("one without a time stays with the next", [-1, 900], locals_(2, 990), 500, -1, None),
        ("exactly as old as allowed stays", [500], locals_(1, 990), 500, -1, None),
        ("too many bytes: the oldest go", [1, 2, 3], locals_(3, 4), -1, 2_000, 20),
        ("an excess smaller than a segment keeps it", [1, 2, 3], locals_(3, 4), -1, 3_500, None),
        ("what is in both tiers counts once", [1, 2, 3], locals_(1, 2, 3, 4), -1, 4_000, None),
        ("what is in both tiers counts once, one byte less", [1, 2, 3], locals_(1, 2, 3, 4), -1, 3_000, 10),
        ("local ones alone break the bound: only remote ones go", [1], locals_(1, 2, 3, 4, 5), -1, 1_000, 10),
        ("the larger of age and size wins", [100, 900, 900], locals_(3, 990), 500, 2_000, 20),
        ("nothing is in the store", [], locals_(0, 1, 2), 1, 1, None),
    ],
)
def test_where_total_retention_moves_the_log_start(
    why: str, remote_times: list[int], local: list, total_ms: int, total_bytes: int, start: int | None
) -> None:
    found = log_start(remotes(*remote_times), local, len(remote_times) * 10, Retention(total_ms, total_bytes), NOW)
    assert found == start, why


@pytest.mark.parametrize(
    ("why", "local", "start", "copied", "committed", "bounds", "expected"),
    [
        ("no bound", locals_(0, 1, 2, 3), 0, 30, ANY, Retention(-1, -1), None),
        ("old, and copied", locals_(0, 1, 2, 3), 0, 20, ANY, Retention(-1, -1, 500, -1), 20),
        ("old, but not copied", locals_(0, 1, 2, 3), 0, 0, ANY, Retention(-1, -1, 500, -1), None),
        ("old, and only one is copied", locals_(0, 1, 2, 3), 0, 10, ANY, Retention(-1, -1, 500, -1), 10),
        ("copied half: a segment stays whole", locals_(0, 1, 2, 3), 0, 15, ANY, Retention(-1, -1, 500, -1), 10),
        ("old, copied, not committed here", locals_(0, 1, 2, 3), 0, 20, 12, Retention(-1, -1, 500, -1), 10),
        ("-2 is as the total", locals_(0, 1, 2, 3), 0, 20, ANY, Retention(500, -1), 20),
        ("the active one stays though it is old", locals_(0, 1), 0, 10, ANY, Retention(-1, -1, 500, -1), None),
        ("too many bytes", locals_(0, 990, 990, 990, 990), 0, 30, ANY, Retention(-1, -1, -1, 2_000), 20),
        ("too many bytes, not copied", locals_(0, 990, 990, 990), 0, 0, ANY, Retention(-1, -1, -1, 0), None),
        ("0 bytes keeps the active one", locals_(0, 990, 990, 990), 0, 30, ANY, Retention(-1, -1, -1, 0), 20),
        ("before the log start it goes though young", locals_(0, 990, 990, 990), 10, 0, ANY, Retention(-1, -1), 10),
        ("young", locals_(0, 990, 990), 0, 20, ANY, Retention(-1, -1, 500, -1), None),
    ],
)
def test_what_may_leave_the_disk(
    why: str, local: list, start: int, copied: int, committed: int, bounds: Retention, expected: int | None
) -> None:
    assert local_start(local, start, copied, committed, bounds, NOW) == expected, why


def test_bytes_on_disk_alone_are_those_of_segments_that_are_not_wholly_copied() -> None:
    assert local_only_bytes(locals_(0, 1, 2, 3), copied_until=15) == 2_000


def test_overdue_is_what_retention_would_delete_if_it_were_copied() -> None:
    local, bounds = locals_(0, 1, 2, 3, 990), Retention(-1, -1, 500, -1)
    assert overdue_bytes(local, 0, ANY, bounds, NOW) == 3_000
    assert overdue_bytes(local, 20, ANY, bounds, NOW) == 1_000
    assert overdue_bytes(local, 30, ANY, bounds, NOW) == 0
    assert overdue_bytes(local, 0, ANY, Retention(-1, -1), NOW) == 0


@pytest.mark.parametrize(
    ("why", "bounds", "number", "expected"),
    [
        ("no lag: at once", Retention(-1, -1), 2, True),
        ("young", Retention(-1, -1, lag_ms=500, lag_bytes=10**6), 0, False),
        ("old enough", Retention(-1, -1, lag_ms=50, lag_bytes=10**6), 0, True),
        ("far enough behind", Retention(-1, -1, lag_ms=500, lag_bytes=3_500), 0, True),
        ("not far enough behind", Retention(-1, -1, lag_ms=500, lag_bytes=3_500), 1, False),
        ("-1 waits as long as local retention allows", Retention(-1, -1, 500, -1, -1, -1), 0, False),
        ("-1 with no local bound has nothing to wait for", Retention(-1, -1, -1, -1, -1, -1), 0, True),
        ("-1 by the total when local is -2", Retention(50, -1, lag_ms=-1, lag_bytes=-1), 0, True),
        ("either is enough: bytes 0 is at once", Retention(-1, -1, lag_ms=500, lag_bytes=0), 0, True),
        ("one of the two, and no bound for the other", Retention(-1, -1, lag_ms=500, lag_bytes=-1), 0, False),
        ("one of the two, and local retention by the other", Retention(-1, -1, -1, 3_500, 500, -1), 0, True),
    ],
)
def test_when_a_closed_segment_may_be_copied(why: str, bounds: Retention, number: int, expected: bool) -> None:
    assert may_copy(locals_(0, 900, 910, 920, 930), number, bounds, NOW) is expected, why


def test_what_has_no_time_is_not_waited_for_until_it_is_old() -> None:
    assert may_copy(locals_(0, -1, -1, 930), 1, Retention(-1, -1, lag_ms=500, lag_bytes=-1), NOW)
    assert not may_copy(locals_(0, -1, 910, 930), 1, Retention(-1, -1, lag_ms=500, lag_bytes=-1), NOW)


@pytest.mark.parametrize(
    ("why", "done_until", "committed", "expected"),
    [
        ("the first", 0, ANY, 0),
        ("in order: the first that is not in the store", 10, ANY, 1),
        ("one of which a part is in the store", 15, ANY, 1),
        ("never the one that is written to", 30, ANY, None),
        ("not one whose end is not committed", 10, 19, None),
        ("one that is committed to its end", 10, 20, 1),
    ],
)
def test_which_segment_is_copied_next(why: str, done_until: int, committed: int, expected: int | None) -> None:
    local = locals_(0, 900, 910, 920, 930)
    assert next_to_copy(local, done_until, committed, Retention(-1, -1), NOW) == expected, why


def test_no_segment_is_copied_before_one_that_is_not_closed_or_has_to_wait() -> None:
    local = locals_(0, 900, 910, 920)
    open_one = [local[0]._replace(closed=False), *local[1:]]
    assert next_to_copy(open_one, 0, ANY, Retention(-1, -1), NOW) is None
    assert next_to_copy(local, 0, ANY, Retention(-1, -1, lag_ms=500, lag_bytes=10**6), NOW) is None


@pytest.mark.parametrize(
    ("segment_ms", "tier_ms", "local_ms", "expected"), [(700, 300, -1, 300), (100, 300, -1, 100), (700, 300, 50, 50)]
)
def test_an_active_segment_is_closed_at_the_smallest_age(
    segment_ms: int, tier_ms: int, local_ms: int, expected: int
) -> None:
    assert roll_after_ms(segment_ms, tier_ms, Retention(-1, -1, local_ms, -1)) == expected
