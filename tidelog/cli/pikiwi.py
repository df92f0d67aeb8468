"""`tidelog pikiwi`: a PikiwiDB (Pika) source: its receiver, its pipeline, and where it stands.

Exit statuses of `receive` and `run`: 0 when told to stop (SIGINT, SIGTERM); else as `tidelog.pikiwi.errors` says.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import logging.handlers
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.cli import CommandError
from tidelog.cli.children import end_with_parent
from tidelog.cli.output import StatusLine, show, show_json, table

if TYPE_CHECKING:
    from tidelog.pikiwi.config import Config
    from tidelog.pikiwi.progress import DatabaseProgress, Progress
    from tidelog.spark.pipeline.telling import Telling

BAR_CELLS = 24
LOG_FILES_KEPT = 14
TERMINAL_S = 0.5

_log = logging.getLogger(__name__)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "pikiwi", help="PikiwiDB (Pika) as a source", description="PikiwiDB (Pika) as a source."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    receive = actions.add_parser(
        "receive",
        help="receive a master's binlog into the WAL until stopped",
        description="Settings come from the file, the environment (TIDELOG_PIKIWI_…) and the flags, in rising order.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_Settings("%(prog)s"),  # argparse fills in texts that have this, and only those
    )
    status = actions.add_parser("status", help="positions, lag, WAL size and snapshot of a source")
    pipeline = actions.add_parser(
        "run",
        help="receiver and Spark pipeline: a source's dump and binlog as events in topics, until stopped",
        description="The receiver runs beside the pipeline, in a process of its own. Settings as for `receive`.",
    )
    for action in (receive, pipeline, status):
        action.add_argument("-C", "--config", metavar="FILE", required=True, help="settings: TOML, or key=value lines")
        action.add_argument(
            "--set", metavar="KEY=VALUE", action="append", default=[], help="a setting; may be repeated"
        )
        action.add_argument("--json", action="store_true", help="for machines")
    for action in (receive, pipeline):
        action.add_argument(
            "-F", "--filter", metavar="SPEC", action="append", default=[], help="one more filter, or a file"
        )
        action.add_argument("-X", "--exclude", metavar="KEYS", action="append", default=[], help="one more exclude")
        action.add_argument("--verbose", action="store_true", help="log more")
    pipeline.add_argument("--master", metavar="URL", help="where Spark's tasks run (default: on this machine)")
    pipeline.add_argument("--no-receiver", action="store_true", help="the receiver runs elsewhere")
    pipeline.add_argument(
        "--spark", metavar="KEY=VALUE", action="append", default=[], help="a setting of Spark's; may be repeated"
    )


class _Settings(str):
    """The list of settings, made only when somebody asks for help."""

    def __mod__(self, _values: object) -> str:
        from tidelog.pikiwi.config import FIELDS

        return "settings:\n" + "\n".join(
            f"  {name} = {_default(item.default)}\n      {item.metadata['doc']}" for name, item in FIELDS.items()
        )


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "(none)" if value in (None, "", ()) else str(value)


def run(options: argparse.Namespace) -> int:
    from tidelog.pikiwi.config import load_config
    from tidelog.pikiwi.errors import PikiwiError

    try:
        overrides = [
            *options.set,
            *(f"filter={text}" for text in getattr(options, "filter", ())),
            *(f"exclude={text}" for text in getattr(options, "exclude", ())),
        ]
        config = load_config(options.config, overrides, os.environ)
        return {"receive": _receive, "run": _run, "status": _status}[options.action](config, options)
    except PikiwiError as error:
        if options.json:
            show_json({"event": "failed", "error": str(error), "exit_status": error.exit_status})
        print(f"tidelog: {error}", file=sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as error:
        extra = "spark" if options.action == "run" else "pikiwi"
        raise CommandError(f"{error.name} is not installed: install tidelog with its extra `{extra}`") from error


# --- receive ----------------------------------------------------------------------------------------------------------


def _receive(config: "Config", options: argparse.Namespace) -> int:
    import uvloop

    from tidelog.pikiwi.filter import Filter, read_specs
    from tidelog.pikiwi.receiver import COLLECT_AFTER

    chosen = Filter.parse(read_specs(config.filter), config.exclude)  # the pipeline's, but a mistake shows at once
    gc.set_threshold(*COLLECT_AFTER)
    with _logging(config, options.verbose), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for note in (*config.notes, *chosen.notes()):
            _log.warning("%s", note)
        runner.run(_receive_until_stopped(config, options))
    return 0


@contextlib.contextmanager
def _logging(config: "Config", verbose: bool) -> Iterator[None]:
    """To stderr, and to files when a folder is set, which get more."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    handlers[0].setLevel(logging.INFO if verbose else logging.WARNING)
    if config.log_path:
        handlers.append(_log_file(Path(config.log_path), config.log_rotate_interval))
    logger = logging.getLogger("tidelog")
    logger.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def _log_file(folder: Path, rotate_s: int) -> logging.Handler:
    from tidelog.pikiwi.errors import ConfigError

    path = folder / "pikiwi-receive.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not rotate_s:
            return logging.FileHandler(path)
        return logging.handlers.TimedRotatingFileHandler(path, "S", rotate_s, backupCount=LOG_FILES_KEPT, utc=True)
    except OSError as error:
        raise ConfigError(f"cannot write logs to {folder}: {error.strerror}; set another log_path") from None


async def _receive_until_stopped(config: "Config", options: argparse.Namespace) -> None:
    from tidelog.pikiwi import metrics, status
    from tidelog.pikiwi.progress import Progress
    from tidelog.pikiwi.receiver import Receiver

    progress = Progress(config.source)
    receiver = Receiver(config, progress=progress)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, receiver.stop)
    ended = asyncio.Event()
    async with metrics.serving(config.metrics_port, progress) as port:
        if port is not None:
            _log.info("metrics on http://127.0.0.1:%d/metrics", port)
        tellers = asyncio.gather(
            status.keep_writing(config.status_file, progress, ended),
            _tell(progress, _teller(options.json), config.binlog_progress_interval, ended),
        )
        try:
            await receiver.run()
        finally:
            progress.link("stopped", progress.detail)
            ended.set()
            await tellers


def _teller(as_json: bool) -> Callable[["Progress"], None]:
    """How progress is told: JSON lines, a line that is written over again, or lines."""
    if as_json:
        from tidelog.pikiwi.status import document

        return lambda progress: show(json.dumps({"event": "progress", **document(progress, time.time())}))
    if sys.stderr.isatty():
        line = StatusLine(sys.stderr)
        return lambda progress: line.show(progress_line(progress, time.time()))
    return lambda progress: print(progress_line(progress, time.time()), file=sys.stderr, flush=True)


async def _tell(progress: "Progress", tell: Callable[["Progress"], None], every_s: int, ended: asyncio.Event) -> None:
    """Until it has ended, and once more then."""
    interval = TERMINAL_S if sys.stderr.isatty() and every_s else every_s
    while interval:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), interval)
        tell(progress)
        if ended.is_set():
            break
    if sys.stderr.isatty():
        print(file=sys.stderr)  # what follows begins on a line of its own


def progress_line(progress: "Progress", now_s: float) -> str:
    """`connected · db0 streaming 12:3456, 1,203,400 items, 0 B behind · …`."""
    head = f"{progress.state}: {progress.detail}" if progress.detail else progress.state
    return " · ".join([head, *(_one_line(each, now_s) for _, each in sorted(progress.databases.items()))])


def _one_line(held: "DatabaseProgress", now_s: float) -> str:
    parts = [f"{held.name} {held.state}"]
    if held.durable is not None:
        parts.append(f"at {held.durable}, {held.items:,} items")
    if held.state == "streaming":
        parts.append(_lag(held.lag_bytes, held.lag_s(now_s)))
    if held.snapshot.state in ("saving", "fetching"):
        snapshot = held.snapshot
        done, total = (snapshot.bytes_done, snapshot.bytes_total) if snapshot.bytes_total else (0, 0)
        if not total:
            done, total = snapshot.files_done, snapshot.files_total
        parts.append(
            f"dump {bar(done, total)} {snapshot.files_done}/{snapshot.files_total} files, {size(snapshot.bytes_done)}"
        )
    return ", ".join(parts)


def _lag(lag_bytes: int | None, lag_s: float | None) -> str:
    if lag_bytes == 0 and not lag_s:
        return "up to date"
    return f"{size(lag_bytes)} and {'?' if lag_s is None else f'{lag_s:.0f}'} s behind"


def bar(done: int, total: int) -> str:
    filled = BAR_CELLS * min(done, total) // total if total else 0
    return "[" + "#" * filled + "." * (BAR_CELLS - filled) + "]"


def size(count: int | None) -> str:
    """`12.3 MiB`."""
    if count is None:
        return "?"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


# --- run --------------------------------------------------------------------------------------------------------------


def _run(config: "Config", options: argparse.Namespace) -> int:
    from tidelog.spark.pipeline.supervisor import RunOptions, run_pipeline

    settings = dict(text.partition("=")[::2] for text in options.spark)
    if wrong := [text for text in options.spark if "=" not in text]:
        raise CommandError(f"--spark {wrong[0]}: write key=value")
    chosen = RunOptions(
        master=options.master,
        receiver=None if options.no_receiver else lambda: _started_receiver(options),
        spark={"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", **settings},
        tell_s=config.binlog_progress_interval,
    )
    with _logging(config, options.verbose):
        run_pipeline(config, chosen, _pipeline_teller(options.json))
    return 0


def _started_receiver(options: argparse.Namespace) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        _receiver_command(options),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us; we tell the receiver
        preexec_fn=end_with_parent,  # noqa: PLW1509 - a system call, whatever other threads hold
    )


def _receiver_command(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "tidelog.cli", "pikiwi", "receive", "--config", options.config]
    for name, texts in (("--set", options.set), ("-F", options.filter), ("-X", options.exclude)):
        for text in texts:
            command += [name, text]
    command += ["--set", "binlog_progress_interval=0"]  # the pipeline tells for both
    return [*command, "--verbose"] if options.verbose else command


def _pipeline_teller(as_json: bool) -> Callable[["Telling"], None]:
    if as_json:
        return lambda telling: show(json.dumps(telling.document()))
    return lambda telling: print(telling.line(), file=sys.stderr, flush=True)


# --- status -----------------------------------------------------------------------------------------------------------


def _status(config: "Config", options: argparse.Namespace) -> int:
    from tidelog.pikiwi.checkpoint import CheckpointFile
    from tidelog.pikiwi.status import StatusError, read_status, report

    first = config.databases[0] if config.databases else "db0"
    said = read_status(config.status_file)
    checkpoint = CheckpointFile(config.checkpoint_path, config.source, first).load()
    if said is None and checkpoint is None:
        raise StatusError(
            f"nothing is known of {config.source}: there is neither {config.status_file} nor {config.checkpoint_path}; "
            "start it with `tidelog pikiwi receive`"
        )
    found = report(said, checkpoint, config.source, time.time())
    if options.json:
        show_json(found)
    else:
        show(_report_text(found))
    return 0


def _report_text(found: dict[str, Any]) -> str:
    head = f"source {found['source_id']}: {found['state']}"
    if found["detail"]:
        head += f" ({found['detail']})"
    if not found["running"] and found["age_s"] is not None:
        head += f", last heard of {found['age_s']:.0f} s ago"
    rows = [
        (
            name,
            one.get("state") or "-",
            one.get("master_end") or "-",
            one.get("durable") or "-",
            one.get("ack") or "-",
            size(one["lag_bytes"]) if one.get("lag_bytes") is not None else "-",
            f"{one['lag_s']:.0f} s" if one.get("lag_s") is not None else "-",
            size(one["undelivered_bytes"]) if one.get("undelivered_bytes") is not None else "-",
            size(one["wal_bytes"]) if "wal_bytes" in one else "-",
            _snapshot_text(one),
        )
        for name, one in found["databases"].items()
    ]
    columns = ("DB", "STATE", "MASTER", "DURABLE", "DELIVERED", "BEHIND", "AGE", "TO DELIVER", "WAL", "SNAPSHOT")
    return f"{head}\n{table(columns, rows)}" if rows else head


def _snapshot_text(one: dict[str, Any]) -> str:
    snapshot = one.get("snapshot") or {}
    if snapshot.get("state") in ("saving", "fetching"):
        files = f"{snapshot['files_done']}/{snapshot['files_total']} files"
        return f"{snapshot['state']} {files}, {size(snapshot['bytes_done'])}"
    states = (one.get("pipeline_snapshot"), snapshot.get("state"))
    return next((state for state in states if state and state != "none"), "-")
