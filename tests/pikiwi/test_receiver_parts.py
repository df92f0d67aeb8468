"""The receiver's parts by themselves: when it tries again, and how messages become durable."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from tidelog.pikiwi.errors import LinkError, PikiwiError, SyncPointError, WalError
from tidelog.pikiwi.intake import Intake, IntakeSettings, Message
from tidelog.pikiwi.link import AlreadyRegistered
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.protocol.requests import ClientNode, Requests
from tidelog.pikiwi.reconnect import Reconnects, ReconnectSettings
from tidelog.pikiwi.session import Received, Session, SessionSettings
from tidelog.pikiwi.wal import WalPoint, WalRecord

# --- trying again ----------------------------------------------------------------------------------------------------

SETTINGS = ReconnectSettings(
    delay_s_first=1.0, delay_s_max=8.0, unreached_max=7, fruitless_max=4, name_taken_delay_s=5.0, name_taken_max=3
)
LOST = LinkError("lost")
TAKEN = AlreadyRegistered("taken")


def after(tries: Reconnects, error: PikiwiError = LOST, *, reached: bool = False, fruitful: bool = False) -> float:
    return tries.after(error, reached=reached, fruitful=fruitful, lasted_s=0.0)


def test_waits_double_up_to_a_bound_and_tries_are_counted() -> None:
    tries = Reconnects(SETTINGS)
    assert [after(tries) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    with pytest.raises(LinkError, match=r"after 7 tries.*lost"):
        after(tries)


def test_connections_without_fruit_have_a_bound_of_their_own() -> None:
    tries = Reconnects(SETTINGS)
    assert [after(tries, reached=True) for _ in range(3)] == [1.0, 2.0, 4.0]
    with pytest.raises(LinkError, match="after 4 tries"):
        after(tries, reached=True)


def test_fruit_clears_the_count() -> None:
    tries = Reconnects(SETTINGS)
    for _ in range(20):
        after(tries, reached=True)
        assert after(tries, reached=True, fruitful=True) == 1.0


def test_a_connection_that_lasted_clears_the_count() -> None:
    tries = Reconnects(SETTINGS)
    for _ in range(20):
        after(tries, reached=True)
        assert tries.after(LOST, reached=True, fruitful=False, lasted_s=SETTINGS.lasting_s) == 1.0


def test_a_name_that_is_taken_is_waited_for_and_then_not() -> None:
    tries = Reconnects(SETTINGS)
    assert [after(tries, TAKEN) for _ in range(2)] == [5.0, 5.0]
    with pytest.raises(AlreadyRegistered):
        after(tries, TAKEN)


def test_only_refusals_in_a_row_count_for_a_name_that_is_taken() -> None:
    tries = Reconnects(SETTINGS)
    for _ in range(3):
        after(tries, TAKEN)
        after(tries, TAKEN)
        after(tries, LOST)


def test_what_does_not_pass_is_raised_at_once() -> None:
    with pytest.raises(SyncPointError):
        after(Reconnects(SETTINGS), SyncPointError("purged"))


def test_the_real_bounds_outlast_what_a_master_needs_to_forget() -> None:
    real = ReconnectSettings()
    assert real.name_taken_delay_s * (real.name_taken_max - 1) > 20


# --- group commit ----------------------------------------------------------------------------------------------------


class SlowWal:
    """Syncs when it is let; notes what happened."""

    def __init__(self) -> None:
        self.durable: WalPoint | None = None
        self.events: list[str] = []
        self.may_sync = threading.Event()
        self.appended = threading.Event()
        self.error: Exception | None = None
        self.last_seq = 0
        self.last_position = self.first_position = ZERO
        self.size_bytes = 0

    def append(self, epoch: int, items: Sequence[tuple[Position, bytes]]) -> None:
        self.events.append(f"append {items[0][0].offset}..{items[-1][0].offset}")
        self.appended.set()

    def sync(self) -> None:
        assert self.may_sync.wait(30.0)
        if self.error is not None:
            raise self.error
        self.events.append("sync")

    def read(self, after_seq: int) -> Iterator[WalRecord]:
        raise NotImplementedError

    def seek(self, position: Position) -> int:
        raise NotImplementedError

    def clean(self, ack: Position) -> int:
        raise NotImplementedError

    def reset(self, position: Position, after_seq: int = 0) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Owner:
    def __init__(self) -> None:
        self.told: list[int] = []  # ends of messages
        self.words: list[str] = []
        self.error: Exception | None = None

    def durable(self, messages: list[Message], sync_s: dict[str, float]) -> None:
        self.told += [message.received.last.offset for message in messages]

    def full(self) -> None:
        self.words.append("full")

    def room(self) -> None:
        self.words.append("room")

    def failed(self, error: Exception) -> None:
        self.error = error


def message(wal: SlowWal, number: int, db: str = "db0") -> Message:
    session = Session(db, Requests(ClientNode("127.0.0.1", 1)), SessionSettings())
    items = [(Position(0, number * 10 + i), b"x" * 100) for i in (1, 2)]
    return Message(db, wal, session, 7, Received(items, 200), 0.0)


def with_intake(test: Callable[[Intake, Owner, SlowWal], Awaitable[None]], **settings: int) -> None:
    async def run() -> None:
        owner, wal = Owner(), SlowWal()
        intake = Intake(owner, IntakeSettings(**settings))
        try:
            await test(intake, owner, wal)
        finally:
            wal.may_sync.set()
            await intake.idle()
            await intake.close()

    asyncio.run(run())


def test_one_sync_covers_all_that_arrived_during_the_one_before() -> None:
    async def scenario(intake: Intake, owner: Owner, wal: SlowWal) -> None:
        intake.add(message(wal, 0))
        await asyncio.to_thread(wal.appended.wait, 30.0)
        for number in range(1, 6):
            intake.add(message(wal, number))
        wal.may_sync.set()
        await intake.settled()
        appended = [f"append {number}1..{number}2" for number in range(1, 6)]
        assert wal.events == ["append 1..2", "sync", *appended, "sync"]
        assert owner.told == [2, 12, 22, 32, 42, 52]

    with_intake(scenario)


def test_nobody_is_told_before_the_sync_has_returned() -> None:
    async def scenario(intake: Intake, owner: Owner, wal: SlowWal) -> None:
        intake.add(message(wal, 0))
        await asyncio.to_thread(wal.appended.wait, 30.0)
        await asyncio.sleep(0)
        assert owner.told == []
        wal.may_sync.set()
        await intake.settled()
        assert owner.told == [2]

    with_intake(scenario)


def test_each_database_s_wal_is_synced_once_a_group() -> None:
    async def scenario(intake: Intake, owner: Owner, wal: SlowWal) -> None:
        other = SlowWal()
        wal.may_sync.set()
        other.may_sync.set()
        for number in range(3):
            intake.add(message(wal, number, "db0"))
            intake.add(message(other, number, "db1"))
        await intake.settled()
        assert wal.events.count("sync") == other.events.count("sync") == 1
        assert len(owner.told) == 6

    with_intake(scenario)


@pytest.mark.parametrize("bound", [{"bytes_max": 500}, {"items_max": 5}], ids=str)
def test_above_the_bound_it_is_full_and_below_half_of_it_there_is_room(bound: dict[str, int]) -> None:
    async def scenario(intake: Intake, owner: Owner, wal: SlowWal) -> None:
        for number in range(2):
            intake.add(message(wal, number))
        assert owner.words == []
        intake.add(message(wal, 2))
        assert owner.words == ["full"]
        assert (intake.held_bytes, intake.held_items) == (600, 6)
        wal.may_sync.set()
        await intake.settled()
        assert owner.words == ["full", "room"]
        assert (intake.held_bytes, intake.held_items) == (0, 0)

    with_intake(scenario, **bound)


def test_a_failed_sync_is_told_and_nothing_is_durable_from_then_on() -> None:
    async def scenario(intake: Intake, owner: Owner, wal: SlowWal) -> None:
        wal.error = WalError("the disk is gone")
        wal.may_sync.set()
        intake.add(message(wal, 0))
        with pytest.raises(WalError, match="the disk is gone"):
            await intake.settled()
        assert isinstance(owner.error, WalError)
        wal.error = None
        intake.add(message(wal, 1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert owner.told == []
        intake._idle.set()  # nobody writes any more

    with_intake(scenario)
