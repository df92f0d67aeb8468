"""The rules for idempotent producers, as tables; what is committed, what is only appended, and what a restart keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.groups import producers as module
from tidelog.groups.producers import SEQUENCE_MAX, Numbers, Producers, Written
from tidelog.wire.errors import ErrorCode

DAY_MS = 86_400_000
FENCED, OUT_OF_ORDER = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

Batch = tuple[int, int, int]
"""Epoch, first sequence, records."""


def _numbers(batch: Batch, producer_id: int = 1) -> Numbers:
    epoch, first, count = batch
    return Numbers.of(producer_id, epoch, first, count)


def _committed(*batches: Batch, producers: Producers | None = None) -> Producers:
    """These batches in the log, one after the other, the first at offset 0 and index 1."""
    known, offset = producers or Producers(DAY_MS), 0
    for index, batch in enumerate(batches, 1):
        known.committed(_numbers(batch), offset, index, 0)
        offset += batch[2]
    return known


RULES: list[tuple[str, list[Batch], Batch, Written | ErrorCode | None]] = [
    ("unknown, from 0", [], (0, 0, 1), None),
    ("unknown, from anywhere", [], (0, 4711, 3), None),
    ("unknown, at the end", [], (3, SEQUENCE_MAX, 1), None),
    ("next", [(0, 0, 1)], (0, 1, 5), None),
    ("next after many records", [(0, 0, 10)], (0, 10, 1), None),
    ("gap of one", [(0, 0, 1)], (0, 2, 1), OUT_OF_ORDER),
    ("backwards", [(0, 5, 1)], (0, 4, 1), OUT_OF_ORDER),
    ("duplicate of the last", [(0, 0, 3)], (0, 0, 3), Written(0, 2, 0)),
    ("duplicate of the one before", [(0, 0, 3), (0, 3, 2)], (0, 0, 3), Written(0, 2, 0)),
    ("duplicate, fifth from the end", [(0, n, 1) for n in range(6)], (0, 1, 1), Written(1, 1, 1)),
    ("sixth from the end is forgotten", [(0, n, 1) for n in range(6)], (0, 0, 1), OUT_OF_ORDER),
    ("same first, other last", [(0, 0, 3)], (0, 0, 2), OUT_OF_ORDER),
    ("same last, other first", [(0, 0, 3)], (0, 1, 2), OUT_OF_ORDER),
    ("old epoch", [(5, 0, 1)], (4, 1, 1), FENCED),
    ("old epoch, from 0", [(5, 0, 1)], (4, 0, 1), FENCED),
    ("old epoch, a duplicate once", [(4, 0, 1), (5, 0, 1)], (4, 0, 1), FENCED),
    ("new epoch from 0", [(5, 0, 1), (5, 1, 1)], (6, 0, 1), None),
    ("new epoch not from 0", [(5, 0, 1)], (6, 1, 1), OUT_OF_ORDER),
    ("new epoch, sequence of the old one", [(5, 0, 1)], (6, 1, 1), OUT_OF_ORDER),
    ("epochs may be left out", [(5, 0, 1)], (9, 0, 1), None),
    ("wrap: 0 after the last", [(0, SEQUENCE_MAX, 1)], (0, 0, 1), None),
    ("wrap: within a batch", [(0, SEQUENCE_MAX - 1, 4)], (0, 2, 1), None),
    ("wrap: duplicate within", [(0, SEQUENCE_MAX - 1, 4)], (0, SEQUENCE_MAX - 1, 4), Written(SEQUENCE_MAX - 1, 1, 0)),
    ("wrap: gap", [(0, SEQUENCE_MAX, 1)], (0, 1, 1), OUT_OF_ORDER),
]


@pytest.mark.parametrize(
    ("written", "asked", "expected"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_rules_for_committed_batches(written: list[Batch], asked: Batch, expected: Written | ErrorCode | None) -> None:
    assert _same(_committed(*written).check(_numbers(asked), 0), expected)


@pytest.mark.parametrize(
    ("written", "asked", "expected"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_the_same_rules_hold_for_batches_that_are_appended_and_not_committed(
    written: list[Batch], asked: Batch, expected: Written | ErrorCode | None
) -> None:
    producers, offset = Producers(DAY_MS), 0
    for index, batch in enumerate(written, 1):
        producers.appended(_numbers(batch), offset, index, 0)
        offset += batch[2]
    assert _same(producers.check(_numbers(asked), 0), expected)
    assert len(producers) == 0


def _same(found: Written | ErrorCode | None, expected: Written | ErrorCode | None) -> bool:
    """Where it is written may say more than the table does."""
    if isinstance(found, Written) and isinstance(expected, Written):
        return (found.first_sequence, found.last_sequence, found.base_offset) == (
            expected.first_sequence,
            expected.last_sequence,
            expected.base_offset,
        )
    return found == expected


def test_producers_do_not_know_of_each_other() -> None:
    producers = _committed((0, 0, 1))
    assert producers.check(_numbers((0, 7, 1), producer_id=2), 0) is None


def test_what_is_appended_goes_on_from_what_is_committed() -> None:
    producers = _committed((0, 0, 1), (0, 1, 1))
    producers.appended(_numbers((0, 2, 1)), 2, 3, 0)
    assert producers.check(_numbers((0, 3, 1)), 0) is None
    assert isinstance(producers.check(_numbers((0, 0, 1)), 0), Written)
    assert producers.check(_numbers((0, 4, 1)), 0) == OUT_OF_ORDER


def test_when_leadership_ends_what_was_not_committed_is_forgotten() -> None:
    producers = _committed((0, 0, 1))
    producers.appended(_numbers((0, 1, 1)), 1, 2, 0)
    producers.appended(_numbers((0, 0, 1), producer_id=2), 2, 3, 0)
    producers.forget_pending()
    assert producers.check(_numbers((0, 1, 1)), 0) is None
    assert producers.check(_numbers((0, 2, 1)), 0) == OUT_OF_ORDER
    assert producers.check(_numbers((0, 9, 1), producer_id=2), 0) is None


def test_a_commit_of_the_first_of_two_keeps_the_second_pending() -> None:
    producers = Producers(DAY_MS)
    producers.appended(_numbers((0, 0, 1)), 0, 1, 0)
    producers.appended(_numbers((0, 1, 1)), 1, 2, 0)
    producers.committed(_numbers((0, 0, 1)), 0, 1, 0)
    assert isinstance(producers.check(_numbers((0, 1, 1)), 0), Written)
    assert producers.check(_numbers((0, 2, 1)), 0) is None
    producers.committed(_numbers((0, 1, 1)), 1, 2, 0)
    producers.forget_pending()
    assert isinstance(producers.check(_numbers((0, 1, 1)), 0), Written)


def test_a_producer_idle_for_too_long_is_unknown_again() -> None:
    producers = Producers(1_000)
    producers.committed(_numbers((3, 0, 1)), 0, 1, 5_000)
    assert producers.check(_numbers((3, 7, 1)), 6_000) == OUT_OF_ORDER
    assert producers.check(_numbers((0, 7, 1)), 6_001) is None


def test_using_a_producer_makes_it_live_on() -> None:
    producers = Producers(1_000)
    producers.committed(_numbers((0, 0, 1)), 0, 1, 0)
    producers.committed(_numbers((0, 1, 1)), 1, 2, 900)
    assert producers.check(_numbers((0, 7, 1)), 1_800) == OUT_OF_ORDER


def test_beyond_the_bound_the_longest_unused_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 3)
    producers = Producers(DAY_MS)
    for index, producer_id in enumerate([1, 2, 3, 1, 4], 1):
        sequence = 1 if (producer_id, index) == (1, 4) else 0
        producers.committed(_numbers((0, sequence, 1), producer_id), index, index, 0)
    assert len(producers) == 3
    assert producers.check(_numbers((0, 9, 1), producer_id=2), 0) is None
    assert all(producers.check(_numbers((0, 9, 1), known), 0) == OUT_OF_ORDER for known in (1, 3, 4))


# --- what a restart keeps --------------------------------------------------------------------------------------------


def test_nothing_saved_restores_nothing() -> None:
    producers = Producers(DAY_MS)
    producers.restore(b"")
    assert len(producers) == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 4), st.integers(0, 2_000)), max_size=25),
    st.integers(0, 3_000),
)
def test_what_is_saved_is_restored(writes: list[tuple[int, int, int, int]], now_ms: int) -> None:
    """Both answer every question alike, but for those who had expired when it was saved."""
    producers, offset, last = Producers(1_000), 0, {}
    for index, (producer_id, epoch, count, used_ms) in enumerate(writes, 1):
        newest, sequence = last.get(producer_id, (epoch, 0))
        now_at = (epoch, 0) if epoch > newest else (newest, sequence)
        producers.committed(Numbers.of(producer_id, *now_at, count), offset, index, used_ms)
        last[producer_id] = (now_at[0], now_at[1] + count)
        offset += count
    restored = Producers(1_000)
    restored.restore(producers.encode(now_ms))
    for producer_id in range(4):
        for epoch in range(3):
            for first in range(12):
                numbers = Numbers.of(producer_id, epoch, first, 2)
                assert _same(restored.check(numbers, now_ms), producers.check(numbers, now_ms))
    assert restored.encode(now_ms) == producers.encode(now_ms)


def test_the_expired_are_not_saved() -> None:
    producers = Producers(1_000)
    producers.committed(_numbers((0, 0, 1), 1), 0, 1, 0)
    producers.committed(_numbers((0, 0, 1), 2), 1, 2, 500)
    restored = Producers(DAY_MS)
    restored.restore(producers.encode(1_200))
    assert len(restored) == 1


def test_what_is_pending_is_not_saved() -> None:
    producers = _committed((0, 0, 1))
    producers.appended(_numbers((0, 1, 1)), 1, 2, 0)
    restored = Producers(DAY_MS)
    restored.restore(producers.encode(0))
    assert restored.check(_numbers((0, 1, 1)), 0) is None


def test_a_format_of_the_future_is_refused() -> None:
    content = bytearray(_committed((0, 0, 1)).encode(0))
    content[0] += 1
    with pytest.raises(ValueError, match="format 2"):
        Producers(DAY_MS).restore(bytes(content))
