"""The connection itself: bounds, ends, and who is told."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.pikiwi.master import HOST, Master
from tests.pikiwi.master_replication import MasterSettings
from tidelog.pikiwi.errors import LinkError, SourceError
from tidelog.pikiwi.link import AlreadyRegistered, Link, LinkSettings
from tidelog.pikiwi.position import ZERO
from tidelog.pikiwi.protocol import REPLICATION_PORT_DISTANCE
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.protocol.requests import ClientNode, Requests
from tidelog.pikiwi.session import Effect, Flows, GoOn, Received, Send, Session, SessionSettings

REQUESTS = Requests(ClientNode("127.0.0.1", 21333))


class Owner:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[Received] = asyncio.Queue()
        self.effects: asyncio.Queue[Effect] = asyncio.Queue()

    def received(self, session: Session, received: Received) -> None:
        self.messages.put_nowait(received)

    def keepalive(self, session: Session) -> None:
        pass

    def effect(self, session: Session, effect: Effect) -> None:
        self.effects.put_nowait(effect)


async def opened(master: Master, owner: Owner | None = None, **settings: float) -> Link:
    port = master.port + REPLICATION_PORT_DISTANCE
    limits = LinkSettings(**settings)  # type: ignore[arg-type]
    return await Link.open(HOST, port, owner or Owner(), REQUESTS, limits, asyncio.get_running_loop().time)


def with_master(test: Callable[[Master], Awaitable[None]], folder: Path, **settings: object) -> None:
    async def run() -> None:
        async with Master(folder, MasterSettings(**settings)) as master:  # type: ignore[arg-type]
            async with asyncio.timeout(30.0):
                await test(master)
            assert master.replication.crashes == []

    asyncio.run(run())


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_the_handshake_tells_databases_and_lineage(tmp_path: Path, version: str) -> None:
    async def scenario(master: Master) -> None:
        link = await opened(master)
        meta = await link.meta_sync("")
        assert meta.databases == ("db0", "db1")
        assert meta.replication_id == master.settings.replication_id
        link.close()

    with_master(scenario, tmp_path, version=version, dbs=("db0", "db1"))


def test_a_port_that_nobody_listens_on_is_said_plainly(tmp_path: Path) -> None:
    async def scenario(master: Master) -> None:
        await master.stop()
        with pytest.raises(LinkError, match="cannot connect to"):
            await opened(master)

    with_master(scenario, tmp_path)


def test_a_refusal_is_told_apart_from_a_name_that_is_taken(tmp_path: Path) -> None:
    async def scenario(master: Master) -> None:
        with pytest.raises(SourceError) as caught:
            await (await opened(master)).meta_sync("wrong")
        assert not isinstance(caught.value, AlreadyRegistered)
        await (await opened(master)).meta_sync("secret")
        with pytest.raises(AlreadyRegistered, match="local_ip and local_port"):
            await (await opened(master)).meta_sync("secret")

    with_master(scenario, tmp_path, password="secret")


def test_the_first_error_is_the_one_that_is_raised(tmp_path: Path) -> None:
    async def scenario(master: Master) -> None:
        link = await opened(master)
        link.fail(LinkError("first"))
        link.fail(LinkError("second"))
        with pytest.raises(LinkError, match="first"):
            await link.ended()

    with_master(scenario, tmp_path)


def test_a_master_that_does_not_read_is_left_before_memory_fills(tmp_path: Path) -> None:
    async def scenario(master: Master) -> None:
        link = await opened(master, unsent_bytes_max=100_000)
        await link.meta_sync("")
        for connection in master.connections:
            assert connection._transport is not None
            connection._transport.pause_reading()
        session = Session("db0", REQUESTS, SessionSettings())
        pings: list[Effect] = [Send(REQUESTS.ping("db0", 0))] * 1_000
        for _ in range(1_000):
            link.carry_out(session, pings)
        with pytest.raises(LinkError, match="does not read"):
            await link.ended()

    with_master(scenario, tmp_path)


def test_while_reading_is_paused_nothing_arrives(tmp_path: Path) -> None:
    async def scenario(master: Master) -> None:
        owner = Owner()
        link = await opened(master, owner)
        await link.meta_sync("")
        session = Session("db0", REQUESTS, SessionSettings())
        link.begin(session, GoOn(ZERO))
        assert isinstance(await owner.effects.get(), Flows)
        link.pause_reading()
        master.execute("db0", b"SET", b"k", b"v")
        master.tick()
        master.tick()
        await asyncio.sleep(0)
        assert owner.messages.empty()
        link.resume_reading()
        assert len((await owner.messages.get()).items) == 1
        link.close()

    with_master(scenario, tmp_path)


def test_leaving_takes_back_the_registration(tmp_path: Path) -> None:
    async def scenario(master: Master) -> None:
        owner = Owner()
        link = await opened(master, owner)
        await link.meta_sync("")
        link.begin(Session("db0", REQUESTS, SessionSettings()), GoOn(ZERO))
        await owner.effects.get()
        await link.leave()
        assert master.replication.requests[-1].type == pb.kRemoveSlaveNode
        assert master.replication.registration() is None

    with_master(scenario, tmp_path)


def test_a_master_that_does_not_say_goodbye_is_not_waited_for_long(tmp_path: Path) -> None:
    async def scenario(master: Master) -> None:
        owner = Owner()
        link = await opened(master, owner, goodbye_s_max=0.05)
        await link.meta_sync("")
        link.begin(Session("db0", REQUESTS, SessionSettings()), GoOn(ZERO))
        await owner.effects.get()
        master.faults.swallow = lambda response: response.type == pb.kRemoveSlaveNode
        await link.leave()

    with_master(scenario, tmp_path)
