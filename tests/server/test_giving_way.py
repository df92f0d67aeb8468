"""Work that can wait gives way to what is being written: until that is durable, or for a while."""

import asyncio

import pytest

from tests.server.client import batch_of
from tests.server.world import Server, World, until

LONG_S = 60.0
LARGE_BYTES = 100_000  # a segment with so much in it is written without a thread, where the kernel can


async def _writing(world: World, before: int = 0) -> Server:
    """A record is handed to the disk, which does not sync; as many are there already."""
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    for _ in range(before):
        await client.produce("t", batch_of(b"x" * LARGE_BYTES))
    server.disk.hold_syncs("/streams/")
    client.send_produce("t", batch_of("x"))
    await server.until_appended("t", before + 1)
    return server


async def test_whoever_gives_way_waits_until_what_is_written_is_durable(world: World) -> None:
    server = await _writing(world)
    waiting = asyncio.ensure_future(server.broker.node.give_way(LONG_S))
    await until(lambda: bool(server.broker.node._giving_way))
    assert not waiting.done()
    server.disk.release_syncs()
    await waiting
    assert not server.broker.node._store.writing
    assert not server.broker.node._giving_way


@pytest.mark.parametrize("before", [0, 1])
async def test_whoever_gives_way_goes_on_behind_the_answers(world: World, before: int) -> None:
    server = await _writing(world, before)
    [connection] = [each for each in server.broker.connections if not each.idle]

    async def give_way() -> bool:
        await server.broker.node.give_way(LONG_S)
        return connection.idle

    waiting = asyncio.ensure_future(give_way())
    await until(lambda: bool(server.broker.node._giving_way))
    server.disk.release_syncs()
    assert await waiting, "the producer has its answer"


async def test_it_does_so_for_a_while_only(world: World) -> None:
    server = await _writing(world)
    await server.broker.node.give_way(0.01)
    assert server.high_watermark("t") == 0
    assert not server.broker.node._giving_way


async def test_nobody_waits_while_nothing_is_written(world: World) -> None:
    server = await world.start()
    await until(lambda: not server.broker.node._store.writing)
    giving = server.broker.node.give_way(LONG_S)
    try:
        giving.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
