"""A write whose answer never comes: it may be in the log or not, and no sequence number is ever given out twice.

HoraeDB takes such a write for failed, gives its numbers to the next one, and finds two entries with one number when it
recovers. Here the tail is read back before anything else is written.
"""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tidelog.regionwal import RegionWal, RegionWalError, Timeout

from .unreliable import UnreliableLog
from .world import World, contents, payloads

REGION, TABLE = 4, 6
WRITE_S_MAX = 2.0
UNDER_WAY_S = 0.5
THREAD_S_MAX = 60.0

Trouble = Callable[[UnreliableLog], None]


@pytest.fixture(autouse=True)
def _healed(broker: UnreliableLog, world: World) -> Iterator[None]:
    """Before the world closes its nodes."""
    yield
    broker.heal()


TROUBLES: dict[str, tuple[Trouble, Trouble]] = {
    "answer lost": (UnreliableLog.hold_answers, UnreliableLog.lose),
    "answer late": (UnreliableLog.hold_answers, UnreliableLog.release),
    "request late": (UnreliableLog.hold_requests, UnreliableLog.release),
    "request lost": (UnreliableLog.hold_requests, UnreliableLog.lose),
    "broker stands still": (UnreliableLog.suspend, UnreliableLog.go_on),
}
ON_KAFKA = ("answer lost", "broker stands still")
troubles = pytest.mark.parametrize(
    ("broker", "trouble"),
    [*(("tidelog", trouble) for trouble in TROUBLES), *(("kafka", trouble) for trouble in ON_KAFKA)],
    indirect=["broker"],
)


@pytest.mark.slow
@troubles
def test_write_that_was_given_up_takes_no_number_twice(broker: UnreliableLog, world: World, trouble: str) -> None:
    begin, end = TROUBLES[trouble]
    wal = world.node(write_timeout_s=WRITE_S_MAX)
    write_when_it_can_be(wal, payloads(TABLE, 1, 3))

    begin(broker)
    with pytest.raises(RegionWalError):
        wal.write(REGION, TABLE, [b"perhaps 1", b"perhaps 2"])
    end(broker)
    last = write_when_it_can_be(wal, [b"after"])

    check_numbers(world, wal, last)


def write_when_it_can_be(wal: RegionWal, payloads: list[bytes]) -> int:
    """Until the client has found its way back, a write may be refused in whole."""
    give_up = time.monotonic() + THREAD_S_MAX
    while True:
        try:
            return wal.write(REGION, TABLE, payloads)
        except Timeout:
            assert time.monotonic() < give_up


@pytest.mark.slow
@troubles
def test_write_that_is_under_way_when_trouble_ends_is_there_once(
    broker: UnreliableLog, world: World, trouble: str
) -> None:
    begin, end = TROUBLES[trouble]
    wal = world.node(write_timeout_s=THREAD_S_MAX)
    wal.write(REGION, TABLE, payloads(TABLE, 1, 3))

    begin(broker)
    lasts: list[int] = []
    writer = threading.Thread(target=lambda: lasts.append(wal.write(REGION, TABLE, [b"perhaps 1", b"perhaps 2"])))
    writer.start()
    writer.join(UNDER_WAY_S)
    end(broker)
    writer.join(THREAD_S_MAX)

    assert lasts == [5]
    last = wal.write(REGION, TABLE, [b"after"])
    assert last == 6
    check_numbers(world, wal, last)


def check_numbers(world: World, wal: RegionWal, last: int) -> None:
    """The writer, and a node that knows only the log, see the same entries, one a number, none left out."""
    entries = contents(wal.read(REGION, TABLE))
    before = [(TABLE, sequence, payload) for sequence, payload in enumerate(payloads(TABLE, 1, 3), 1)]
    assert entries[:3] == before
    assert entries[-1] == (TABLE, last, b"after")
    assert [payload for _, _, payload in entries[3:-1]] in ([], [b"perhaps 1"], [b"perhaps 1", b"perhaps 2"])
    sequences = [sequence for _, sequence, _ in entries]
    assert sequences == sorted(set(sequences))
    assert contents(wal.scan(REGION)) == entries
    other = world.node()
    assert contents(other.scan(REGION)) == entries
    assert other.sequence_num(REGION, TABLE) == last
