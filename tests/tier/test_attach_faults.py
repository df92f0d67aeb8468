"""Attached topics when things go wrong: a leader that ends while it follows, an owner that deletes underneath.

Whatever happens, a reader gets the owner's bytes at their offsets, one after the other, or an error; never a gap, and
neither end of the stream goes back.
"""

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, lead
from tests.server.world import until
from tests.tier.processes import TOPIC, WAIT_S, TieredProcesses
from tests.tier.tiered import attached, owner, read_numbers, settings, stored, write
from tidelog import faults
from tidelog.faults import Action
from tidelog.tier.layout import StreamManifest
from tidelog.wire.errors import ErrorCode

READ, RECORDED = "tier.mirror.manifest-read", "tier.mirror.recorded"
SHOWN = "shown"
CRASHED = 137


@pytest.fixture
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


@pytest.fixture(autouse=True)
def _points_off() -> Iterator[None]:
    yield
    faults.clear()


def stop_at(point: str, *, skip: int = 0) -> None:
    """Whoever comes there does not get any further."""
    faults.arm(point, Action("error", code=errno.EIO, skip=skip))


@pytest.mark.usefixtures("_leaders_stay")
async def test_a_leader_killed_between_two_entries_of_one_manifest_is_followed_by_one_that_goes_on(
    cluster: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.tier_mirror.SEGMENTS_AN_ENTRY", 1)
    async with owner(tmp_path) as (_, source):
        await write(source, 35)
        await until(lambda: source.replica("t").remote.copied_until == 30)
        leader = await attached(cluster, tmp_path, 30)
        stop_at(READ)  # until there is more to follow than one entry takes
        await write(source, 30, first=35)
        await until(lambda: source.replica("t").remote.copied_until == 60)
        stop_at(RECORDED)
        stop_at(READ, skip=1)
        await until(lambda: leader.replica(SHOWN).high_watermark == 40)
        assert await read_numbers(leader, SHOWN) == list(range(40)), "what is shown so far is whole"
        await cluster.kill(1)
        following = await cluster.until_led(SHOWN)
        assert await read_numbers(following, SHOWN) == list(range(40)), "the end does not go back"
        faults.clear()
        await until(lambda: following.replica(SHOWN).high_watermark == 60)
        assert await read_numbers(following, SHOWN) == list(range(60))
        again = await cluster.start_node(1, **settings(tmp_path))
        await until(lambda: again.replica(SHOWN).high_watermark == 60)
        assert again.replica(SHOWN).remote.encode() == following.replica(SHOWN).remote.encode()


@pytest.mark.usefixtures("_leaders_stay")
async def test_what_the_owner_deletes_underneath_is_an_error_and_never_a_gap(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    async with owner(tmp_path) as (_, source):
        await write(source, 35)
        await until(lambda: source.replica("t").remote.copied_until == 30)
        leader = await attached(cluster, tmp_path, 30)
        stop_at(READ)
        replica = source.replica("t")
        replica.move_start(15, replica.now() + 5_000, lambda _: None)
        await until(lambda: not any(f"{0:020d}-" in path.name for path in stored(tmp_path)))
        for node in (1, 2):  # a new leader knows no more than the old one
            leader = await lead(cluster, SHOWN, node)
            client = await leader.connect()
            answer = await client.fetch(SHOWN, 3)
            assert (answer.error_code, answer.records or b"") == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
            assert answer.log_start_offset == 0
            assert await read_numbers(leader, SHOWN, offset=12) == list(range(12, 30)), "what is there is served"
        faults.disarm(READ)
        await until(lambda: leader.replica(SHOWN).start_offset == 15)
        client = await leader.connect()
        assert (await client.fetch(SHOWN, 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await read_numbers(leader, SHOWN, offset=15) == list(range(15, 30))


async def test_a_manifest_that_is_damaged_or_another_streams_changes_nothing(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    async with owner(tmp_path) as (_, source):
        await write(source, 35)
        await until(lambda: source.replica("t").remote.copied_until == 30)
        leader = await attached(cluster, tmp_path, 30)
    path = next(path for path in stored(tmp_path) if path.name == "manifest.json")
    whole, tiering = path.read_bytes(), leader.broker.tiering
    manifest = StreamManifest.decode(whole)
    other = replace(manifest, place=replace(manifest.place, partition=1), start_offset=20)
    assert tiering is not None
    for content, said in ((whole[:-30], "checksum"), (other.encode(), "is that of")):
        path.write_bytes(content)
        await until(lambda said=said: said in tiering.trouble_of(leader.replica(SHOWN)))
        assert await read_numbers(leader, SHOWN) == list(range(30))
    path.write_bytes(replace(manifest, start_offset=20).encode())
    await until(lambda: leader.replica(SHOWN).start_offset == 20)


# Real processes


@contextmanager
def clusters(tmp_path: Path, nodes: int) -> Iterator[tuple[TieredProcesses, TieredProcesses]]:
    """An owner of one node, and so many that show its topic."""
    source = TieredProcesses(tmp_path / "owner", nodes=1)
    showing = TieredProcesses(tmp_path / "showing", nodes, store=source.store, topic=SHOWN)
    try:
        source.start(**{"retention.bytes": str(4 << 20)})
        source.write(200)
        source.wait_tiered(100)
        showing.cluster.start()
        showing.cluster.admin("tier-attach", source=TOPIC, topic=SHOWN)
        yield source, showing
    finally:
        showing.close()
        source.close()


def check(source: TieredProcesses, showing: TieredProcesses, before: tuple[int, int]) -> tuple[int, int]:
    """All that is shown, which must reach what the owner has copied, is the owner's; neither end has gone back."""
    copied = source.status()["copied_until"]
    showing.cluster.wait_for(lambda: showing.status()["high_watermark"] >= copied, "following", WAIT_S)
    found = showing.check_every_offset()
    assert (found[0] >= before[0], found[1] >= copied) == (True, True)
    return found


def test_a_leader_killed_at_any_step_of_following_shows_what_the_owner_has(tmp_path: Path) -> None:
    with clusters(tmp_path, 1) as (source, showing):
        bounds = check(source, showing, (0, 0))
        for point in (READ, RECORDED):
            leader = showing.cluster.leader(SHOWN)
            showing.cluster.admin("fault", node=leader, point=point, action="crash")
            source.write(150)
            node = showing.cluster.nodes[leader]
            assert node.wait_ended(WAIT_S) == CRASHED, point
            node.start()
            showing.cluster.wait_ready()
            bounds = check(source, showing, bounds)
        assert bounds[0] > 0, "the owner has deleted meanwhile"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_thirty_kills_of_who_shows_while_the_owner_writes_and_deletes(tmp_path: Path) -> None:
    rng, bounds = random.Random(11), (0, 0)
    with clusters(tmp_path, 3) as (source, showing):
        for _ in range(30):
            source.write(rng.randrange(40, 120))
            leader = showing.cluster.leader(SHOWN)
            showing.cluster.nodes[leader].kill()
            showing.cluster.nodes[leader].start()
            showing.cluster.wait_ready()
            bounds = check(source, showing, bounds)
    assert bounds[0] > 0
