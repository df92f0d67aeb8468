"""A program of its own, since MERGE needs a session with jars and extensions that no other test has.

Folds a script of commands into a state table, by MERGE, by the other engine, by MERGE again (this time with a FLUSHDB
in the batch), breaks what can be broken on the way, and prints what came out as JSON.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from tests.spark.tables.commands import FIRST_VERSION, accepted, contents, script, shown, typed
from tidelog.pikiwi.keyspace import Keyspace
from tidelog.spark.session import session
from tidelog.spark.tables import merge
from tidelog.spark.tables.delta import DeltaFolder, TableBusy
from tidelog.spark.tables.fold import RULES, Command
from tidelog.spark.tables.merge import MergedTable
from tidelog.spark.tables.position import unpack
from tidelog.spark.tables.state import StateTable

SOURCE = "pikiwi/test/lineage/db0"
RULES_4 = RULES["4"]
FIRST = 150  # commands


def run(folder: Path, jars: str) -> dict[str, object]:
    commands, model = accepted([*script(700, seed=5), [b"SET", b"other", b"1"]], RULES_4)
    flushes = [number for number, command in enumerate(commands) if command.op.startswith("flush")]
    splits = (0, FIRST, flushes[-1] - 1, len(commands))
    table = StateTable.create(folder, RULES_4, buckets=4)
    table.replace(SOURCE, "db0", [], unpack(FIRST_VERSION))
    table.replace("another", "db1", [], unpack(FIRST_VERSION))
    table.apply("another", "db1", typed(neighbours(), "db1"), unpack(FIRST_VERSION), unpack(neighbours()[-1].version))
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "spark.log.level": "FATAL"}
    quiet = {"spark.ui.showConsoleProgress": "false", "spark.jars": jars}
    few = {"spark.sql.shuffle.partitions": "1", "spark.databricks.delta.snapshotPartitions": "1"}
    spark = session("merging", "local[2]", {**merge.SETTINGS, **quick, **few, **quiet})
    try:
        merged = MergedTable(table, spark)
        told: dict[str, object] = {}
        for number, (begin, end) in enumerate(pairwise(splits)):
            batch = commands[begin:end]
            start, stop = table.position(SOURCE), unpack(batch[-1].version)
            assert start is not None
            given = (SOURCE, "db0", typed(batch), start, stop)
            if number == 0:
                told["crash before"] = crash_before_merge(merged, table, given)
            (table if number == 1 else merged).apply(*given)
            if number == 0:
                told["clock"] = table.clock_ms("db0") == max(command.exec_ms for command in batch)
                told["again"] = again(merged, table, given)
                told["locked"] = locked(merged, folder, table, given)
        told["protocol"] = table.delta.delta.protocol().min_reader_version
    finally:
        spark.stop()
    now_ms = commands[-1].exec_ms + RULES_4.clock_ms
    found = StateTable.open(folder)
    held = {(kind, key): (shown(kind, entry), entry.expire_ms) for kind, key, entry in found.held("db0", now_ms)}
    neighbour = {key for _, key, _ in found.held("db1", 0)}
    versions_fine = versions(found) == last_versions(commands, model, now_ms)
    told |= {"equal": held == contents(model, now_ms), "neighbour": len(neighbour), "versions": versions_fine}
    return told | {"keys": len(held), "position": found.position(SOURCE) == unpack(commands[-1].version)}


def neighbours() -> list[Command]:
    return [Command("set", [b"SET", b"n%d" % n, b"v"], 1_700_000_000_000, FIRST_VERSION + 1 + n) for n in range(9)]


def versions(table: StateTable) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for each in table.delta.files():
        if each.partition[0] == "db0":
            rows = table.delta.read(each)
            found |= dict(zip(rows["key"].to_pylist(), rows["version"].to_pylist(), strict=True))
    return found


def last_versions(commands: list[Command], model: Keyspace, now_ms: int) -> dict[bytes, int]:
    """Of every key that is there, by the engine that all other tests are about."""
    from tidelog.spark.tables.fold import fold  # noqa: PLC0415

    held = fold([], commands, RULES_4).held
    assert {key for _, key, _, _ in held} >= {key for _, key, _ in model.all(now_ms)}
    return {key: version for _, key, _, version in held}


def crash_before_merge(merged: MergedTable, table: StateTable, given: tuple) -> bool:
    """What ends a batch before its MERGE has changed nothing."""
    version = table.delta.version
    with patch.object(MergedTable, "_merge", side_effect=KeyboardInterrupt):
        try:
            merged.apply(*given)
        except KeyboardInterrupt:
            table.delta.refresh()
            return table.delta.version == version and table.position(SOURCE) == given[3]
    return False


def again(merged: MergedTable, table: StateTable, given: tuple) -> bool:
    """A batch that is in the table is refused; and MERGE itself does nothing with its position."""
    try:
        merged.apply(*given)
    except TableBusy:
        version = table.delta.version
        version_end = table.delta.position(SOURCE)
        assert version_end is not None
        merged._merge(SOURCE, "db0", merge.CHANGE_SCHEMA.empty_table(), {}, version_end, flushed=True)
        table.delta.refresh()
        return table.delta.version == version
    return False


def locked(merged: MergedTable, folder: Path, table: StateTable, given: tuple) -> bool:
    """No MERGE while another process writes."""
    end = given[4]
    with DeltaFolder.open(folder).alone():
        try:
            merged.apply(SOURCE, "db0", given[2].slice(0, 0), end, end)
        except TableBusy:
            return table.position(SOURCE) == end
    return False


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2])))
