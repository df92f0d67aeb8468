"""`tidelog regionwal`: look into region WALs, on Tidelog or Apache Kafka, while databases go on writing to them.

Both commands only read: nothing is written, no topic is created, and no writer is fenced.
"""

import argparse
import base64
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tidelog.cli import CommandError
from tidelog.cli.client import ANSWER_S_MAX, Cluster, add_bootstrap, number_from, plain
from tidelog.cli.output import Progress, show, show_json, standard_output, table

if TYPE_CHECKING:
    from tidelog.regionwal import Entry, RegionStatistics, RegionWal

NAMESPACE_DEFAULT = "wal"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("regionwal", help="look into the write-ahead logs of databases")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(act: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        parser = actions.add_parser(act.__name__.strip("_"), help=text)
        parser.set_defaults(act=act)
        parser.add_argument(
            "--namespace",
            metavar="NAME",
            type=plain,
            default=NAMESPACE_DEFAULT,
            help=f"the database's, first part of its topics' names (default: {NAMESPACE_DEFAULT})",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_bootstrap(parser)
        return parser

    inspect = action(_inspect, "show regions, or the tables of one: marks, lag, and what pins the log")
    inspect.add_argument("region", metavar="REGION", type=number_from(0), nargs="?", help="default: all, in short")

    replay = action(_replay, "print or export the entries of a table that are not deleted")
    replay.add_argument("region", metavar="REGION", type=number_from(0))
    replay.add_argument("table", metavar="TABLE", type=number_from(0))
    replay.add_argument(
        "--from", dest="first", metavar="SEQ", type=number_from(1), help="the first entry (default: all)"
    )
    replay.add_argument("--to", dest="last", metavar="SEQ", type=number_from(1), help="the last entry (default: all)")
    replay.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write there instead, each entry as 4 bytes of length, big-endian, and its bytes; with --json a line each",
    )


def run(options: argparse.Namespace) -> int:
    from tidelog.regionwal import RegionWalError

    try:
        options.act(options)
    except RegionWalError as error:
        raise CommandError(" ".join(str(error).split())) from None
    return 0


@contextmanager
def _looking(options: argparse.Namespace) -> "Iterator[RegionWal]":
    from tidelog.regionwal import RegionWal, Settings

    Cluster(options.bootstrap)  # says in plain words when nobody is there
    wal = RegionWal(
        Settings(
            bootstrap=options.bootstrap,
            namespace=options.namespace,
            read_only=True,
            open_timeout_s=ANSWER_S_MAX,
            read_timeout_s=ANSWER_S_MAX,
            client={"client.id": "tidelog-cli", "log_level": 0},
        )
    )
    try:
        yield wal
    finally:
        wal.close()


def _check_region(wal: "RegionWal", region: int) -> None:
    """Before it is looked at: looking at a region that is not there would wait for its topics."""
    if region not in wal.regions():
        name = wal.settings.namespace
        raise CommandError(
            f"namespace {name} has no region {region}: see `tidelog regionwal inspect --namespace {name}`, "
            f"or name another one with --namespace"
        )


# --- inspect ---------------------------------------------------------------------------------------------------------


def _inspect(options: argparse.Namespace) -> None:
    with _looking(options) as wal:
        if options.region is not None:
            _check_region(wal, options.region)
            _show_region(_statistics(wal, options.region), options.json)
            return
        regions = [_statistics(wal, region) for region in wal.regions()]
    rows = [_region_row(region) for region in regions]
    if options.json:
        show_json(rows)
    else:
        header = ("REGION", "EPOCH", "TABLES", "LIVE ENTRIES", "LOG FROM", "TO", "PINNED RECORDS", "BYTES", "BY TABLE")
        show(table(header, [[_cell(value) for value in row.values()] for row in rows]))


def _statistics(wal: "RegionWal", region: int) -> "RegionStatistics":
    [found] = wal.statistics(region).regions
    return found


def _region_row(region: "RegionStatistics") -> dict[str, int | None]:
    return {
        "region": region.region_id,
        "epoch": region.epoch,
        "tables": len(region.tables),
        "live_entries": sum(each.live_entries for each in region.tables),
        "earliest_offset": region.earliest_offset,
        "next_offset": region.next_offset,
        "pinned_records": region.pinned_records,
        "pinned_bytes": region.pinned_bytes,
        "pinned_by": region.pinned_by,
    }


def _show_region(region: "RegionStatistics", as_json: bool) -> None:
    rows = [
        {
            "table": each.table_id,
            "last": each.next_sequence - 1,
            "deleted": each.marked_deleted - 1,
            "live_entries": each.live_entries,
            "first_live_offset": each.first_live_offset,
            "lag": 0 if each.first_live_offset is None else region.next_offset - each.first_live_offset,
            "map_runs": each.map_runs,
        }
        for each in region.tables
    ]
    if as_json:
        more = {
            "data_topic": region.data_topic,
            "meta_topic": region.meta_topic,
            "snapshot_serial": region.snapshot_serial,
            "snapshot_high_watermark": region.snapshot_high_watermark,
            "records_after_snapshot": region.records_after_snapshot,
            "void_records": region.void_records,
        }
        show_json({**_region_row(region), **more, "tables": rows})
        return
    pinned = "nothing is pinned: every table is flushed"
    if region.pinned_by is not None:
        pinned = (
            f"{region.pinned_records} records ({region.pinned_bytes} bytes) pinned by table {region.pinned_by}: "
            f"flush it, and the log can be cleaned"
        )
    show(f"region    {region.region_id}, epoch {region.epoch}")
    show(f"log       {region.data_topic}, offsets {region.earliest_offset} to {region.next_offset}")
    show(f"          {pinned}")
    show(
        f"snapshot  {region.meta_topic}, number {region.snapshot_serial}; recovery reads the "
        f"{region.records_after_snapshot} records after it"
    )
    header = ("TABLE", "LAST", "DELETED UP TO", "LIVE ENTRIES", "OLDEST AT", "LAG", "MAP RUNS")
    show(table(header, [[_cell(value) for value in row.values()] for row in rows]))


def _cell(value: int | None) -> int | str:
    return "-" if value is None else value


# --- replay ----------------------------------------------------------------------------------------------------------


def _replay(options: argparse.Namespace) -> None:
    from tidelog.regionwal import Bound

    start = Bound.min() if options.first is None else Bound.included(options.first)
    end = Bound.max() if options.last is None else Bound.included(options.last)
    with _looking(options) as wal:
        _check_region(wal, options.region)
        if options.table not in {each.table_id for each in _statistics(wal, options.region).tables}:
            raise CommandError(
                f"region {options.region} has no table {options.table}: "
                f"see `tidelog regionwal inspect {options.region}`"
            )
        entries = wal.read(options.region, options.table, start, end)
        if options.out is None:
            with standard_output() as out:
                _write(entries, out, _json_line if options.json else _line)
            return
        try:
            with open(options.out, "wb") as file:
                count = _write(entries, file, _json_line if options.json else _framed)
        except OSError as error:
            raise CommandError(f"cannot write {options.out}: {error.strerror}") from None
    print(f"{count} entries written to {options.out}", file=sys.stderr)


def _write(entries: "Iterator[Entry]", out: BinaryIO, form: "Callable[[Entry], bytes]") -> int:
    progress, count, size = Progress(), 0, 0
    for count, entry in enumerate(entries, 1):
        out.write(form(entry))
        size += len(entry.payload)
        progress.update(count, size)
    progress.clear()
    return count


def _line(entry: "Entry") -> bytes:
    return entry.payload + b"\n"


def _framed(entry: "Entry") -> bytes:
    return len(entry.payload).to_bytes(4, "big") + entry.payload


def _json_line(entry: "Entry") -> bytes:
    """A payload that is not UTF-8 is base64, and its field's name says so."""
    try:
        payload = {"payload": entry.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(entry.payload).decode()}
    record = {"table": entry.table_id, "sequence": entry.sequence, "offset": entry.offset, **payload}
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"
