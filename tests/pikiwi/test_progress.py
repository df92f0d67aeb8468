"""How far behind the master: in bytes over files, in seconds by the master's clock, and when it is nothing."""

import pytest

from tidelog.pikiwi.position import Position
from tidelog.pikiwi.progress import BINLOG_FILE_BYTES, DatabaseProgress, Progress, distance_bytes


@pytest.mark.parametrize(
    ("start", "end", "bytes_between"),
    [
        (Position(3, 100), Position(3, 150), 50),
        (Position(3, 100), Position(3, 100), 0),
        (Position(3, 100), Position(3, 50), 0),
        (Position(3, 100), Position(2, 900), 0),
        (Position(3, 100), Position(4, 20), 920),
        (Position(3, 100), Position(6, 20), 2920),
        (Position(3, 2000), Position(4, 20), 0),  # a file may be longer than most: never negative
    ],
)
def test_distance_counts_whole_files(start: Position, end: Position, bytes_between: int) -> None:
    assert distance_bytes(start, end, 1000) == bytes_between


def test_behind_what_the_master_told_until_it_is_durable() -> None:
    held = DatabaseProgress("db0")
    assert (held.lag_bytes, held.lag_s(1000)) == (None, None)
    held.session(4, Position(3, 100), Position(3, 500))
    held.got(Position(3, 300), 2, 180)
    assert (held.lag_bytes, held.lag_s(1000)) == (None, None), "nothing is durable yet"

    held.synced(Position(3, 300), 2, 990, 0.01)
    assert (held.lag_bytes, held.lag_s(1000)) == (200, 10)
    held.got(Position(3, 600), 3, 270)
    assert held.lag_bytes == 300, "items beyond the end that was told move it on"
    held.synced(Position(3, 600), 5, 999, 0.01)
    assert (held.lag_bytes, held.lag_s(1000.5)) == (0, 1.5)
    held.keepalive()
    assert (held.lag_bytes, held.lag_s(5000)) == (0, 0), "a master that has nothing more says so"
    held.got(Position(3, 700), 1, 90)
    assert held.lag_s(1010) == 11


def test_a_session_that_begins_at_the_masters_end_is_up_to_date() -> None:
    held = DatabaseProgress("db0")
    held.session(4, Position(3, 500), Position(3, 500))

    assert (held.lag_bytes, held.lag_s(1000)) == (0, 0)


def test_what_the_wal_held_at_the_start_counts_as_durable() -> None:
    held = DatabaseProgress("db0")
    held.opened(Position(3, 100), 7)
    held.session(4, Position(3, 100), Position(3, 500))

    assert (held.durable, held.durable_seq, held.lag_bytes, held.lag_s(1000)) == (Position(3, 100), 7, 400, None)


def test_clocks_that_differ_do_not_make_it_negative() -> None:
    held = DatabaseProgress("db0")
    held.synced(Position(3, 1), 1, 2000, 0.0)

    assert held.lag_s(1000) == 0


def test_files_are_counted_by_the_longest_that_was_seen_to_end() -> None:
    held = DatabaseProgress("db0")
    assert held.binlog_file_bytes == BINLOG_FILE_BYTES
    for end, expected in ((1_049_316, 1_049_316), (1_000_000, 1_049_316), (1_060_000, 1_060_000)):
        held.rolled(end)
        assert held.binlog_file_bytes == expected


def test_a_lost_connection_ends_the_sessions() -> None:
    progress = Progress("here")
    progress.link("connected")
    progress.link("connected")
    held = progress.database("db0")
    held.session(4, Position(3, 500), Position(3, 500))
    progress.lost("the master closed it")

    assert (progress.state, progress.detail, progress.connections, progress.disconnects) == (
        "waiting", "the master closed it", 1, 1,
    )  # fmt: skip
    assert (held.session_id, held.state, held.caught_up) == (None, "waiting", False)
    assert progress.database("db0") is held


def test_a_full_sync_begins_with_nothing_fetched() -> None:
    held = DatabaseProgress("db0")
    held.full_sync()
    held.snapshot.fetching("uuid-1", 10)
    held.snapshot.begins_at(Position(3, 5))
    held.snapshot.fetched(4096)
    held.snapshot.fetched(100, files=1)
    assert (held.snapshot.bytes_done, held.snapshot.files_done, held.state) == (4196, 1, "full sync")
    held.snapshot.ready()
    assert held.snapshot.state == "ready"
    held.full_sync()
    assert (held.snapshot.state, held.snapshot.bytes_done, held.snapshot.position, held.full_syncs) == (
        "saving", 0, None, 2,
    )  # fmt: skip
