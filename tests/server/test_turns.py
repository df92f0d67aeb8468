"""Turns of a node: as many as there is something to decide, and one more whenever something comes too late for one."""

import pytest

from tests.server.client import batch_of
from tests.server.world import World
from tidelog.raft import Effects, Work


async def test_what_a_turn_proposes_itself_asks_for_no_other_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    server.disk.hold_syncs("/streams/")
    node = server.broker.node
    poll = node._host.poll
    next_is_planned: list[bool] = []

    def watched(now_ms: int) -> Work:
        next_is_planned.append(node._turn_planned)
        return poll(now_ms)

    monkeypatch.setattr(node._host, "poll", watched)
    client.send_produce("t", batch_of("x"))
    await server.until_appended("t", 1)
    assert next_is_planned
    assert not any(next_is_planned)
    server.disk.release_syncs()


async def test_what_is_asked_for_while_a_turn_is_carried_out_has_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    node = server.broker.node
    replica = next(each for stream, each in node.replicas.items() if stream)
    take = replica.take
    planned: list[bool] = []

    def ask_too(effects: Effects) -> None:
        take(effects)
        replica.announce()
        planned.append(node._turn_planned)

    monkeypatch.setattr(replica, "take", ask_too)
    await client.produce("t", batch_of("x"))
    assert planned
    assert all(planned)
