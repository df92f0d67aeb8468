"""Every setting of a PikiwiDB source: one list, with kind, default and meaning.

The file is TOML (`.toml`), or `key=value` lines as the Go tool reads them: blank lines and lines that begin with `#` or
`;` are left out, the first `=` ends the key, keys are not case-sensitive, `filter` and `exclude` may be repeated. The
keys are the same. Environment (`TIDELOG_PIKIWI_<KEY>`, which keeps a password out of files) and `--set key=value` come
on top, in this order.

What cannot be understood is an error with its line, never a warning: a setting that is silently not in force is found
out too late. The Go tool's settings that have no meaning here (`WITHOUT_EFFECT`) are taken, each with a note that says
why, so that its files work as they are.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tidelog.pikiwi.commands import DATA_TYPES
from tidelog.pikiwi.errors import ConfigError
from tidelog.pikiwi.position import Position

ENVIRONMENT_PREFIX = "TIDELOG_PIKIWI_"
LOCAL_PORT = 21_333  # what local_port 0 stands for
PORT_MAX = 65_535 - 10_001  # rsync2 listens 10,001 above the port for commands
DATABASES_MAX = 8
SEGMENT_BYTES_MAX = 4 << 30
DUMP_PATH = Path("rsync_dump")
CHECKPOINT_PATH = Path("checkpoint.json")
WAL_DIR = Path("wal")

ALIASES = {
    "password": "passwd",
    "master_password": "passwd",
    "exclude_keys": "exclude",
    "log_rotate_interval_sec": "log_rotate_interval",
    "binlog_progress_interval_sec": "binlog_progress_interval",
    "pb_ack_delay_warn_sec": "pb_ack_delay_warn",
    "pb_idle_timeout_sec": "pb_idle_timeout",
    "snapshot_reader_prefix": "snapshot_reader_prefixes",
}

WITHOUT_EFFECT = {
    "sync_protocol": "there is one protocol (PB)",
    "wal_sync_every": "nothing is acknowledged before it is synced, and one sync covers all that waits",
    "snapshot_cgo_batch": "the dump is read without a C++ library of its own",
    "snapshot_scan_batch": "the dump is read with iterators, not in scans",
    "snapshot_scan_strategy": "the dump is read with iterators, not in scans",
    "binlog_workers": "items are decoded by the pipeline's Spark tasks",
    "binlog_queue_size": "the queue between receiver and pipeline is the WAL",
    "window_slots": "the pipeline's batches take the place of the ring",
    "sender_batch_size": "the pipeline's batches take the place of the ring",
}


def _setting(
    default: Any,
    doc: str,
    *,
    low: int = 0,
    high: int | None = None,
    choices: tuple[str, ...] = (),
    also: Any = None,
    secret: bool = False,
) -> Any:
    metadata = {"doc": doc, "low": low, "high": high, "choices": choices, "also": also or {}}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Config:
    """Times are in the unit that the name says, or in seconds as in the Go tool."""

    # The source.
    master_ip: str = _setting("127.0.0.1", "host of the master, or of a slave to read from")
    master_port: int = _setting(
        0, "its port for commands; replication is at +2000, rsync2 at +10001. Required", high=PORT_MAX
    )
    passwd: str = _setting("", "the master's `requirepass`; also `password`, `master_password`", secret=True)
    local_ip: str = _setting(
        "127.0.0.1", "what we register as; with `local_port` unique among all slaves of the master"
    )
    local_port: int = _setting(0, f"what we register as; nothing listens there. 0: {LOCAL_PORT}", high=65_535)
    db_name: str = _setting("db0", "the database; or several (`db0,db2`), or `all` that the master has")
    source_id: str = _setting("", "names the source in checkpoint and events; empty: master_ip:master_port")

    # Where to begin. Priority: filenum + offset, start_from_master, checkpoint or WAL, initial_full_sync.
    filenum: int | None = _setting(None, "begin at this binlog file; with `offset`", high=2**32 - 1)
    offset: int | None = _setting(None, "begin at this offset; with `filenum`", high=2**64 - 1)
    start_from_master: bool = _setting(False, "begin at the master's end; what is before it is left out")
    initial_full_sync: bool = _setting(True, "begin with a full sync when there is neither checkpoint nor WAL")
    sync_point_purged_action: Literal["full_sync", "start_from_master", "pause"] = _setting(
        "full_sync",
        "when the master no longer has our position: fetch a dump, go on from its end (leaving a gap), or stop asking",
        choices=("full_sync", "start_from_master", "pause"),
    )
    lineage_changed_action: Literal["full_sync", "stop"] = _setting(
        "full_sync", "when the master's replication_id is another: fetch a dump, or end", choices=("full_sync", "stop")
    )

    # Files. (A Path never changes, which the linter does not know.)
    log_path: str = _setting("", "folder for log files; empty: stderr only")
    log_rotate_interval: int = _setting(86_400, "seconds that one log file covers; 0: one file for ever")
    dump_path: Path = _setting(DUMP_PATH, "folder for dumps, one below it a database")  # noqa: RUF009
    checkpoint_path: Path = _setting(CHECKPOINT_PATH, "the checkpoint file; its lock is beside it")  # noqa: RUF009
    checkpoint_interval_ms: int = _setting(1_000, "the checkpoint is written at most this often, and at the end", low=1)
    status_path: str = _setting("", "where the status document goes; empty: beside the checkpoint")

    # The WAL.
    wal_backend: Literal["files", "stream"] = _setting(
        "files", "`files` in `wal_dir`, or a `stream` of a Kafka-compatible log", choices=("files", "stream")
    )
    wal_dir: Path = _setting(WAL_DIR, "folder of the WAL; with several databases one below it each")  # noqa: RUF009
    wal_segment_bytes: int = _setting(256 << 20, "size at which a segment is closed", low=4096, high=SEGMENT_BYTES_MAX)
    wal_retain_segments: int = _setting(2, "newest segments that are kept though they were delivered", low=1)
    wal_bytes_max: int = _setting(
        64 << 30, "of all WALs; above it nothing more is received until the pipeline has delivered. 0: no bound"
    )
    wal_reader_bytes_max: int = _setting(
        16 << 30,
        "binlog behind AckCP that is kept for a table, or another reader of the WAL, that has yet to read it",
    )
    wal_reader_hours_max: int = _setting(168, "hours that it is kept for one that does not come back")
    wal_stream_brokers: str = _setting("", "the log for `wal_backend = stream`; empty: kafka_brokers")
    wal_stream_prefix: str = _setting("pikiwi.wal", "its streams are `<prefix>.<db>`, of one partition")

    # The link.
    wait_bgsave_timeout: int = _setting(1_800, "seconds that the master may take to make a dump", low=1)
    pb_ack_delay_warn: int = _setting(
        10, "seconds between receiving and acknowledging that are worth a warning; 0: none"
    )
    pb_idle_timeout: int = _setting(30, "seconds without a word from the master until we connect anew", low=5)

    # Telling.
    binlog_progress_interval: int = _setting(5, "seconds between progress lines; 0: none")
    metrics_port: int = _setting(0, "Prometheus metrics on 127.0.0.1; 0: none", high=65_535)

    # Reading dumps.
    snapshot_batch_num: int = _setting(512, "elements of a list, hash, set, zset in one command", low=1)
    snapshot_workers: int = _setting(4, "parts of a dump that are read at once", low=1)
    snapshot_reader_mode: Literal["type", "single"] = _setting(
        "type", "whether the types of a dump are read in parallel", choices=("type", "single")
    )
    snapshot_reader_types: str = _setting(
        "auto", "types to read, with commas; `auto`: those that the filter lets through"
    )
    snapshot_reader_prefixes: str = _setting("auto", "key prefixes to read, with commas; `auto`: from the filter")
    snapshot_list_tail_n: int = _setting(0, "of each list only the last so many elements; 0: all")

    # Filter and events: for the pipeline, checked at the start.
    filter: tuple[str, ...] = _setting((), "which commands become events (`key=…;type=…;action=…`, or a file of such)")
    exclude: tuple[str, ...] = _setting((), "key patterns that never do; also `exclude_keys`")
    partition_by: Literal["db_key", "db_type_key"] = _setting(
        "db_key",
        "what chooses an event's partition; with the type in it, as in the Go tool, events of one key may spread",
        choices=("db_key", "db_type_key"),
    )
    pksetexat: Literal["set", "setex"] = _setting(
        "set",
        "how it is told: `set` with an absolute expiry, or, as in the Go tool, `setex` with the seconds left",
        choices=("set", "setex"),
    )
    zero_expiry: Literal["none", "keep"] = _setting(
        "none",
        "what its time 0 means: no expiry (4.x masters), or the one that the key has (3.5)",
        choices=("none", "keep"),
    )
    args_encoding: Literal["base64", "none"] = _setting(
        "base64", "of `args` in events", choices=("base64", "none"), also={"b64": "base64", "raw": "none"}
    )
    raw_resp_encoding: Literal["base64", "none"] = _setting(
        "base64", "of `raw_resp` in events", choices=("base64", "none"), also={"b64": "base64", "raw": "none"}
    )
    include_raw_resp: bool = _setting(True, "whether events have `raw_resp`")

    # Where the pipeline's events go.
    kafka_brokers: str = _setting("", "bootstrap servers, with commas")
    kafka_client_id: str = _setting("pika-port-kafka", "client.id of producers, the stream WAL's too")
    kafka_stream_mode: Literal["dual", "single"] = _setting(
        "dual", "snapshot and binlog events in two topics or in one", choices=("dual", "single")
    )
    kafka_topic_snapshot: str = _setting("pika.snapshot", "topic of snapshot events (dual)")
    kafka_topic_binlog: str = _setting("pika.binlog", "topic of binlog events (dual)")
    kafka_topic_single: str = _setting("pika.stream", "topic of all events (single)")
    kafka_message_max_bytes: int = _setting(1_000_000, "largest event", low=1_000)
    kafka_enable_idempotence: bool = _setting(True, "idempotent producers")

    notes: tuple[str, ...] = ()  # what was taken without effect, and why

    def __post_init__(self) -> None:
        if not self.master_port:
            raise ConfigError("master_port is not set: it is the port that the master takes commands on, often 9221")
        if (self.filenum is None) != (self.offset is None):
            raise ConfigError("filenum and offset make one position: set both or neither")
        if self.start_position is not None and self.start_from_master:
            raise ConfigError("filenum/offset and start_from_master exclude each other: choose where to begin")
        if self.wal_backend == "stream" and not self.stream_brokers:
            raise ConfigError("wal_backend is stream and there is no log to write to: set wal_stream_brokers")
        if len(self.databases) > DATABASES_MAX or len(set(self.databases)) != len(self.databases):
            raise ConfigError(
                f"db_name is {self.db_name!r}; name each database once, {DATABASES_MAX} at most, or `all`"
            )
        for name in self.databases:
            if not re.fullmatch(r"db\d{1,3}", name):
                raise ConfigError(f"db_name is {self.db_name!r}; databases are called db0, db1 and so on")

        for name in self.snapshot_types or ():
            if name not in DATA_TYPES:
                raise ConfigError(
                    f"snapshot_reader_types names {name!r}; write auto, or some of {', '.join(DATA_TYPES)}"
                )

    @property
    def snapshot_types(self) -> tuple[str, ...] | None:
        """None: from the filter."""
        return _words_or_auto(self.snapshot_reader_types)

    @property
    def snapshot_prefixes(self) -> tuple[str, ...] | None:
        """None: from the filter."""
        return _words_or_auto(self.snapshot_reader_prefixes)

    @property
    def databases(self) -> tuple[str, ...]:
        """Empty: all that the master has."""
        names = tuple(name.strip() for name in self.db_name.split(",") if name.strip())
        return () if names == ("all",) else names or ("db0",)

    @property
    def start_position(self) -> Position | None:
        return None if self.filenum is None or self.offset is None else Position(self.filenum, self.offset)

    @property
    def source(self) -> str:
        return self.source_id or f"{self.master_ip}:{self.master_port}"

    @property
    def registered_port(self) -> int:
        return self.local_port or LOCAL_PORT

    @property
    def stream_brokers(self) -> str:
        return self.wal_stream_brokers or self.kafka_brokers

    @property
    def status_file(self) -> Path:
        path = self.checkpoint_path
        return Path(self.status_path) if self.status_path else path.with_name(f"{path.stem}.status.json")


def _words_or_auto(text: str) -> tuple[str, ...] | None:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    return None if words in ((), ("auto",)) else words


FIELDS = {item.name: item for item in dataclasses.fields(Config) if item.name != "notes"}


class _Given(NamedTuple):
    """One setting as somebody wrote it."""

    where: str  # file and line, or the like
    key: str
    value: Any  # text, or what TOML made of it


def load_config(
    path: Path | str | None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Config:
    """From the file, then the environment, then `key=value` texts; the later one counts, lists are added to."""
    given = list(_from_file(Path(path))) if path is not None else []
    for name, text in (environment or {}).items():
        if name.startswith(ENVIRONMENT_PREFIX):
            given.append(_Given(f"environment, {name}", name.removeprefix(ENVIRONMENT_PREFIX), text))
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: write key=value")
        given.append(_Given(f"--set {key.strip()}", key, value.strip()))
    return _combined(given)


def _from_file(path: Path) -> Iterable[_Given]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text") from None
    return _from_toml(path, text) if path.suffix == ".toml" else _from_lines(path, text)


def _from_lines(path: Path, text: str) -> Iterable[_Given]:
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()  # noqa: PLW2901
        if not line or line[0] in "#;":
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{path}, line {number}: {line!r} is no key=value")
        yield _Given(f"{path}, line {number}", key, value.strip())


def _from_toml(path: Path, text: str) -> Iterable[_Given]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    for key, value in content.items():
        found = re.search(rf'^[ \t]*(?:\[[ \t]*)?"?{re.escape(key)}"?[ \t]*[=.\]]', text, re.MULTILINE)
        number = text.count("\n", 0, found.start()) + 1 if found else 1
        yield _Given(f"{path}, line {number}", key, value)


def _combined(given: Iterable[_Given]) -> Config:
    values: dict[str, Any] = {}
    notes: list[str] = []
    origin: dict[str, str] = {}
    for where, written, value in given:
        key = written.strip().lower()
        key = ALIASES.get(key, key)
        if key in WITHOUT_EFFECT:
            notes.append(f"{key} has no effect: {WITHOUT_EFFECT[key]}")
            continue
        item = FIELDS.get(key)
        if item is None:
            raise ConfigError(f"{where}: there is no setting {written.strip()!r}{_meant(key)}")
        parsed = _parse(where, item, value)
        values[key] = values.get(key, ()) + parsed if isinstance(parsed, tuple) else parsed
        origin[key] = where
    _choose_start(values, origin)
    config = Config(**values, notes=tuple(notes))
    _check_wal(config, origin)
    return config


def _check_wal(config: Config, origin: Mapping[str, str]) -> None:
    """Segments are let go as a whole and some are kept: a bound that these reach by themselves would never be left."""
    least = (config.wal_retain_segments + 2) * config.wal_segment_bytes * max(1, len(config.databases))
    if 0 < config.wal_bytes_max < least:
        raise ConfigError(
            f"{origin.get('wal_bytes_max', 'wal_segment_bytes')}: wal_bytes_max is {config.wal_bytes_max}; with these "
            f"wal_segment_bytes and wal_retain_segments it has to be at least {least}"
        )


def _choose_start(values: dict[str, Any], origin: Mapping[str, str]) -> None:
    """`initial_full_sync` is on by default, and gives way to another start unless somebody asked for both."""
    chosen = {key: value for key, value in values.items() if value is not False}
    other = next((key for key in ("filenum", "offset", "start_from_master") if key in chosen), None)
    if other is None:
        return
    if values.get("initial_full_sync"):
        raise ConfigError(
            f"{origin['initial_full_sync']}: initial_full_sync and {other} ({origin[other]}) exclude each other: "
            "choose where to begin"
        )
    values["initial_full_sync"] = False


def _meant(key: str) -> str:
    import difflib  # noqa: PLC0415 - only for a mistake

    close = difflib.get_close_matches(key, [*FIELDS, *ALIASES, *WITHOUT_EFFECT], 1)
    return f"; did you mean {close[0]}?" if close else ""


def _parse(where: str, item: "dataclasses.Field[Any]", value: Any) -> Any:
    meta = item.metadata
    kind = _kind(item)
    if kind is tuple:
        texts = value if isinstance(value, list) else [value]
        return tuple(_text(where, item, text) for text in texts)
    if kind is bool:
        return _truth(where, item, value)
    if kind is int:
        return _number(where, item, value)
    text = _text(where, item, value)
    if meta["choices"]:
        text = meta["also"].get(text.lower(), text.lower())
        if text not in meta["choices"]:
            raise ConfigError(f"{where}: {item.name} is {value!r}; choose one of {', '.join(meta['choices'])}")
    if kind is Path:
        if not text:
            raise ConfigError(f"{where}: {item.name} is empty; it is a path")
        return Path(text)
    return text


def _kind(item: "dataclasses.Field[Any]") -> type:
    """What a setting's values are; those without a default are numbers."""
    kind = int if item.default is None else type(item.default)
    return Path if issubclass(kind, Path) else kind


def _text(where: str, item: "dataclasses.Field[Any]", value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {item.name} is {value!r}; write a text")
    return value


_TRUTH = {"1": True, "true": True, "yes": True, "y": True, "0": False, "false": False, "no": False, "n": False}


def _truth(where: str, item: "dataclasses.Field[Any]", value: Any) -> bool:
    truth = value if isinstance(value, bool) else _TRUTH.get(str(value).strip().lower())
    if truth is None:
        raise ConfigError(f"{where}: {item.name} is {value!r}; write true or false")
    return truth


def _number(where: str, item: "dataclasses.Field[Any]", value: Any) -> int:
    low, high = item.metadata["low"], item.metadata["high"]
    text = value.strip() if isinstance(value, str) else ""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if re.fullmatch(r"-?\d+", text, re.ASCII):
        number = int(text)
    if number is None:
        raise ConfigError(f"{where}: {item.name} is {value!r}; write a whole number")
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"{low} to {high}"
        raise ConfigError(f"{where}: {item.name} is {number}; it has to be {bounds}")
    return number
