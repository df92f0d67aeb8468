"""`tidelog table`: Delta tables out of a PikiwiDB source or any stream, and questions to them.

Every step of `build` and `from-stream` is one commit, so they may be stopped and started at any moment. `query`, and
`build` with MERGE, start Spark.
"""

import argparse
import base64
import gc
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.cli import CommandError
from tidelog.cli.client import add_bootstrap, number_from, split_addresses, stream_name
from tidelog.cli.output import StatusLine, show, show_json, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pikiwi.config import Config
    from tidelog.spark.tables.build import Apply
    from tidelog.spark.tables.delta import DeltaFolder
    from tidelog.spark.tables.state import StateTable

DISTURBED_MAX = 5  # rounds in a row that other writers, or a full sync, may spoil
FOLLOW_S = 1.0  # between two looks at a source that has nothing new
ROWS_DEFAULT = 1_000
CELL_MAX = 60  # characters of a value that are shown
REQUEST_S = 30.0
QUICK = {  # for one answer: a JVM that starts fast, few tasks
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.showConsoleProgress": "false",
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "table", help="Delta tables of sources and streams", description="Delta tables of sources and streams."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    build = actions.add_parser("build", help="what every key of a PikiwiDB source holds, kept up with its dump and WAL")
    _add_source(build, required=True)
    _add_table(build)
    build.add_argument(
        "--buckets", type=number_from(1), metavar="N", help="parts that a new table is cut into by key (default: 32)"
    )
    build.add_argument(
        "--without-snapshot", action="store_true", help="begin empty when there is no dump of what was before the WAL"
    )
    build.add_argument(
        "--engine",
        choices=("rewrite", "merge"),
        default="rewrite",
        help="who changes the table: this process, or MERGE of delta-spark on Spark's workers (default: rewrite)",
    )
    build.add_argument("--master", metavar="URL", help="where Spark's tasks run, with --engine merge")
    build.add_argument("--jars", metavar="FILE,…", help="delta-spark and delta-storage, if Spark does not have them")
    _add_follow(build)

    landed = actions.add_parser("from-stream", help="a stream's records as rows; the schema grows with them")
    landed.add_argument("stream", metavar="STREAM", type=stream_name)
    landed.add_argument("--format", choices=("json",), default="json", help="what records are (default: json)")
    _add_table(landed)
    add_bootstrap(landed)
    _add_follow(landed)

    query = actions.add_parser("query", help="ask Spark SQL; a table is a view of its folder's name")
    query.add_argument("sql", metavar="SQL")
    query.add_argument(
        "--table", metavar="[NAME=]FOLDER", action="append", required=True, help="a table; may be repeated"
    )
    query.add_argument(
        "--rows",
        type=number_from(1),
        default=ROWS_DEFAULT,
        metavar="N",
        help=f"rows at most (default: {ROWS_DEFAULT:,})",
    )

    compact = actions.add_parser("compact", help="few large files instead of many small ones")
    _add_table(compact)
    vacuum = actions.add_parser("vacuum", help="delete files that no recent version of a table has")
    _add_table(vacuum)
    vacuum.add_argument(
        "--retain-hours",
        type=number_from(0),
        default=168,
        metavar="N",
        help="keep what a version of the last N hours had, for readers that still use it (default: 168)",
    )
    vacuum.add_argument("--dry-run", action="store_true", help="only say which files")
    for action in (build, landed, query, compact, vacuum):
        action.add_argument("--json", action="store_true", help="for machines")


def _add_source(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("-C", "--config", metavar="FILE", required=required, help="the source's settings")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a setting; may be repeated")


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", metavar="FOLDER", type=Path, required=True, help="the table's folder")


def _add_follow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--follow", action="store_true", help="go on until stopped")


def run(options: argparse.Namespace) -> int:
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "build": _build,
        "from-stream": _from_stream,
        "query": _query,
        "compact": _compact,
        "vacuum": _vacuum,
    }
    try:
        with _plainly():
            return actions[options.action](options)
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: install tidelog with its extra `spark`") from error


@contextmanager
def _plainly() -> Iterator[None]:
    """What can go wrong, in one line."""
    from deltalake.exceptions import DeltaError

    from tidelog.pikiwi.errors import PikiwiError
    from tidelog.spark.errors import LogSourceError

    try:
        yield
    except (LogSourceError, PikiwiError) as error:
        raise CommandError(str(error)) from error
    except DeltaError as error:
        raise CommandError(f"the table: {str(error).splitlines()[0]}") from error


# --- build ------------------------------------------------------------------------------------------------------------


def _build(options: argparse.Namespace) -> int:
    from tidelog.pikiwi.config import load_config
    from tidelog.spark.tables.build import COLLECT_AFTER, open_state
    from tidelog.spark.tables.state import BUCKETS_DEFAULT

    gc.set_threshold(*COLLECT_AFTER)
    config = load_config(options.config, options.set, os.environ)
    state = open_state(options.table, config, options.buckets or BUCKETS_DEFAULT)
    if options.buckets not in {None, state.buckets}:
        raise CommandError(f"{options.table} has {state.buckets} buckets, and a table keeps its number: leave it out")
    if options.engine == "rewrite" and (options.master or options.jars):
        raise CommandError("--master and --jars are for --engine merge")
    with _engine(options, state) as apply:
        steps = _follow(options, state.delta, lambda: _build_now(options, config, state, apply))
    if not steps and not options.json:
        show("up to date")
    return 0


@contextmanager
def _engine(options: argparse.Namespace, state: "StateTable") -> "Iterator[Apply]":
    """What folds batches into the table."""
    if options.engine == "rewrite":
        yield state.apply
        return
    from tidelog.spark.tables.merge import SETTINGS, MergedTable

    settings = {
        **SETTINGS,
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.jars": options.jars} if options.jars else {}),
    }
    spark = _session("tidelog table build", settings, options.master)
    try:
        yield MergedTable(state, spark).apply
    finally:
        spark.stop()


def _build_now(options: argparse.Namespace, config: "Config", state: "StateTable", apply: "Apply") -> int:
    from tidelog.spark.tables.build import build

    line = StatusLine(sys.stderr)
    count = 0
    found = build(
        state,
        config,
        without_snapshot=options.without_snapshot,
        progress=lambda done, all_: line.show(f"dump: {done} of {all_} ranges"),
        apply=apply,
    )
    for step in found:
        count += 1
        line.clear()
        if options.json:
            said = {"db": step.db, "step": step.kind, "position": str(step.position), "version": state.delta.version}
            show_json({**said, "commands": step.commands, "keys": step.keys})
        else:
            what = {
                "snapshot": "the dump is loaded",
                "empty": "begins empty",
                "binlog": f"{step.commands:,} commands, {step.keys:,} keys",
            }
            show(f"{step.db} at {step.position}: {what[step.kind]} (version {state.delta.version})")
    return count


def _follow(options: argparse.Namespace, delta: "DeltaFolder", once: Callable[[], int]) -> int:
    """What was done, over all rounds. A round that others have disturbed begins again where the table stands then."""
    from tidelog.pikiwi.wal import WalGone
    from tidelog.spark.tables.build import NotYet
    from tidelog.spark.tables.delta import TableBusy

    line = StatusLine(sys.stderr)
    done = disturbed = 0
    while True:
        try:
            done += once()
            disturbed = 0
        except (TableBusy, WalGone):
            disturbed += 1
            if disturbed == DISTURBED_MAX:
                raise
            delta.refresh()
            continue
        except NotYet as reason:
            if not options.follow:
                raise
            line.show(str(reason))
        if not options.follow:
            return done
        time.sleep(FOLLOW_S)


# --- from-stream ------------------------------------------------------------------------------------------------------


def _from_stream(options: argparse.Namespace) -> int:
    from tidelog.spark.cluster import Cluster
    from tidelog.spark.tables.from_stream import land, open_stream_table

    found = open_stream_table(options.table, options.stream)
    with Cluster(split_addresses(options.bootstrap), REQUEST_S) as cluster:

        def once() -> int:
            count = 0
            for landed in land(found, cluster, options.stream):
                count += 1
                if options.json:
                    show_json(
                        {
                            "version": landed.version,
                            "records": landed.records,
                            "new_columns": list(landed.new_columns),
                            "rescued": landed.rescued,
                        }
                    )
                else:
                    new = f", new columns {', '.join(landed.new_columns)}" if landed.new_columns else ""
                    rescued = f", {landed.rescued:,} with something in _rescued" if landed.rescued else ""
                    show(f"version {landed.version}: {landed.records:,} records{new}{rescued}")
            return count

        if not _follow(options, found, once) and not options.json:
            show("up to date")
    return 0


# --- query ------------------------------------------------------------------------------------------------------------


def _query(options: argparse.Namespace) -> int:
    from pyspark.errors import PySparkException

    from tidelog.spark.tables.delta import DeltaFolder
    from tidelog.spark.tables.query import make_views

    tables = dict(_named(text) for text in options.table)
    for folder in tables.values():
        DeltaFolder.open(folder)  # what is not there shows before Spark starts
    spark = _session("tidelog table query", QUICK)
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it writes what the exception says, in ten lines
    try:
        make_views(spark, tables)
        answer = spark.sql(options.sql)
        rows = answer.take(options.rows + 1)
    except PySparkException as error:
        raise CommandError(f"the query: {str(error).splitlines()[0]}") from error
    finally:
        spark.stop()
    shown, columns = rows[: options.rows], answer.columns
    if options.json:
        for row in shown:
            show_json({name: _plain(value) for name, value in zip(columns, row, strict=True)})
    else:
        show(table(columns, [[_cell(value) for value in row] for row in shown]))
    if len(rows) > options.rows:
        print(f"tidelog: only the first {options.rows:,} rows are shown; see --rows", file=sys.stderr)
    return 0


def _session(name: str, settings: Mapping[str, str], master: str | None = None) -> "SparkSession":
    """What the JVM says on stderr while it starts is shown only when it does not."""
    from pyspark.errors import PySparkException

    from tidelog.spark.session import session

    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)  # the JVM keeps it
        try:
            return session(name, master, settings)
        except PySparkException as error:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines() or [str(error)]
            why = "; ".join(lines[-2:])  # the second but last is the cause when a script goes on without Java
            raise CommandError(f"Spark did not start: {why}; it needs Java 17 or later (JAVA_HOME)") from error
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _named(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    path = Path(folder if equals else text)
    name = name if equals else path.absolute().name
    if not name.isidentifier():
        raise CommandError(f"{name!r} cannot be a view's name: write NAME={path}")
    return name, path


def _plain(value: Any) -> Any:
    """A value of a row as JSON has it; bytes that are no text are `base64:…`."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)  # JSON has no infinities
    return value


def _cell(value: Any) -> object:
    if value is None:
        return "NULL"
    plain = _plain(value)
    if isinstance(plain, int) and not isinstance(plain, bool):
        return plain
    text = "".join(character if character.isprintable() else "·" for character in str(plain))
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…"


# --- upkeep -----------------------------------------------------------------------------------------------------------


def _compact(options: argparse.Namespace) -> int:
    from tidelog.spark.tables.delta import DeltaFolder
    from tidelog.spark.tables.state import KIND, STATE, StateTable

    found = DeltaFolder.open(options.table)
    done = StateTable(found).compact() if found.settings.get(KIND) == STATE else found.compact()
    if options.json:
        show_json({**done, "version": found.version})
    else:
        expired = f", {done['rows_dropped']:,} rows of expired keys dropped" if done["rows_dropped"] else ""
        show(f"{done['files_removed']:,} files became {done['files_added']:,}{expired} (version {found.version})")
    return 0


def _vacuum(options: argparse.Namespace) -> int:
    from tidelog.spark.tables.delta import DeltaFolder

    files = DeltaFolder.open(options.table).vacuum(options.retain_hours, dry_run=options.dry_run)
    if options.json:
        show_json({"files": files, "deleted": not options.dry_run})
    else:
        show(f"{len(files):,} files {'would be' if options.dry_run else 'were'} deleted")
    return 0
