"""`tidelog regionwal inspect` and `replay`: what they show, and that they disturb nobody."""

import base64
from pathlib import Path

import pytest

from tests.cli.command import Tidelog

from .world import World, contents, expected, payloads

REGION = 12


@pytest.fixture
def tidelog(tidelog_world: World) -> Tidelog:
    return Tidelog(tidelog_world.log.bootstrap)


@pytest.fixture
def namespace(tidelog_world: World) -> list[str]:
    return ["--namespace", tidelog_world.namespace]


def fill(world: World) -> None:
    """Table 1 is half flushed and pins the log, table 2 is flushed, table 3 is hot."""
    wal = world.node()
    wal.write(REGION, 1, payloads(1, 1, 10))
    wal.write(REGION, 2, payloads(2, 1, 5))
    wal.write(REGION, 3, payloads(3, 1, 20))
    wal.mark_delete(REGION, 1, 5)
    wal.mark_delete(REGION, 2, 5)
    wal.clean_region(REGION)


def test_inspect_lists_regions(tidelog: Tidelog, tidelog_world: World, namespace: list[str]) -> None:
    fill(tidelog_world)
    tidelog_world.node().open_region(REGION + 1)

    ended = tidelog.succeed("regionwal", "inspect", *namespace)
    parsed = tidelog.succeed("regionwal", "inspect", *namespace, "--json").parsed

    header, *rows = ended.out.decode().splitlines()
    assert header.split()[0] == "REGION"
    assert [row.split()[0] for row in rows] == [str(REGION), str(REGION + 1)]
    assert [region["region"] for region in parsed] == [REGION, REGION + 1]
    assert parsed[0]["live_entries"] == 25
    assert parsed[0]["pinned_by"] == 1


def test_inspect_shows_the_tables_of_a_region_and_what_pins_its_log(
    tidelog: Tidelog, tidelog_world: World, namespace: list[str]
) -> None:
    fill(tidelog_world)

    shown = tidelog.succeed("regionwal", "inspect", str(REGION), *namespace).out.decode()
    parsed = tidelog.succeed("regionwal", "inspect", str(REGION), *namespace, "--json").parsed

    assert "pinned by table 1" in shown
    tables = {table["table"]: table for table in parsed["tables"]}
    assert (tables[1]["last"], tables[1]["deleted"], tables[1]["live_entries"]) == (10, 5, 5)
    assert (tables[2]["last"], tables[2]["deleted"], tables[2]["live_entries"]) == (5, 5, 0)
    assert (tables[3]["last"], tables[3]["deleted"], tables[3]["live_entries"]) == (20, 0, 20)


def test_replay_prints_a_table(tidelog: Tidelog, tidelog_world: World, namespace: list[str]) -> None:
    fill(tidelog_world)

    ended = tidelog.succeed("regionwal", "replay", str(REGION), "1", *namespace)
    some = tidelog.succeed("regionwal", "replay", str(REGION), "1", "--from", "7", "--to", "8", *namespace)

    assert ended.lines == payloads(1, 6, 5)
    assert some.lines == payloads(1, 7, 2)


def test_replay_prints_json(tidelog: Tidelog, tidelog_world: World, namespace: list[str]) -> None:
    tidelog_world.node().write(REGION, 1, [b"text", b"\xff\x00"])

    [first, second] = tidelog.succeed("regionwal", "replay", str(REGION), "1", "--json", *namespace).parsed_lines

    assert (first["table"], first["sequence"], first["payload"]) == (1, 1, "text")
    assert base64.b64decode(second["payload_base64"]) == b"\xff\x00"


def test_replay_exports_entries_with_their_lengths(
    tidelog: Tidelog, tidelog_world: World, namespace: list[str], tmp_path: Path
) -> None:
    tidelog_world.node().write(REGION, 1, [b"two\nlines", b"", b"last"])

    tidelog.succeed("regionwal", "replay", str(REGION), "1", "--out", str(tmp_path / "table"), *namespace)

    exported = (tmp_path / "table").read_bytes()
    assert exported == b"\0\0\0\x09two\nlines" + b"\0\0\0\0" + b"\0\0\0\x04last"


def test_looking_writes_nothing_and_fences_nobody(tidelog: Tidelog, tidelog_world: World, namespace: list[str]) -> None:
    wal = tidelog_world.node()
    wal.write(REGION, 1, payloads(1, 1, 3))
    ends = {topic: tidelog_world.latest(topic) for topic in tidelog_world.topics()}

    tidelog.succeed("regionwal", "inspect", str(REGION), *namespace)
    tidelog.succeed("regionwal", "replay", str(REGION), "1", *namespace)

    assert {topic: tidelog_world.latest(topic) for topic in tidelog_world.topics()} == ends
    assert wal.write(REGION, 1, payloads(1, 4, 1)) == 4
    assert contents(wal.scan(REGION)) == expected(1, 1, 4)


def test_region_that_is_not_there_is_named_and_not_created(
    tidelog: Tidelog, tidelog_world: World, namespace: list[str]
) -> None:
    for command in (["inspect", "99"], ["replay", "99", "1"]):
        assert "has no region 99" in tidelog.fail("regionwal", *command, *namespace)
    assert tidelog_world.topics() == set()


def test_table_that_was_never_written_is_named(tidelog: Tidelog, tidelog_world: World, namespace: list[str]) -> None:
    fill(tidelog_world)

    assert "has no table 77" in tidelog.fail("regionwal", "replay", str(REGION), "77", *namespace)


def test_namespace_without_regions_shows_none(tidelog: Tidelog, namespace: list[str]) -> None:
    assert tidelog.succeed("regionwal", "inspect", *namespace, "--json").parsed == []
