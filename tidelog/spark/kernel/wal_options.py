"""Options of the PikiwiDB sources: which source, which of its databases, what rows, how much at a time.

A source's own settings (`tidelog pikiwi`) are the base: `config` names their file, `settings` has some as a JSON object
on top, so that a session of Spark reads what a receiver writes without saying anything twice. Passwords are not among
what travels to the workers.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidelog.pikiwi.checkpoint import Checkpoint, CheckpointFile
from tidelog.pikiwi.commands import ZeroExpiry
from tidelog.pikiwi.config import Config, load_config
from tidelog.pikiwi.errors import PikiwiError
from tidelog.pikiwi.event import EventBuilder, EventSettings, Pksetexat
from tidelog.pikiwi.filter import Filter, read_specs
from tidelog.pikiwi.keys import Encoding, PartitionBy
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import wal_folder
from tidelog.pikiwi.wal.record import WalPoint
from tidelog.spark.errors import BadOption
from tidelog.spark.kernel.messages import Delivery
from tidelog.spark.kernel.wal_rows import WalDecode

RECORDS_MAX_DEFAULT = 200_000  # a micro-batch and database
BYTES_MAX_DEFAULT = 128 << 20

EARLIEST, LATEST, DELIVERED = "earliest", "latest", "delivered"
DELIVERY = "delivery"  # beside the databases in an offset

SOURCE_OPTIONS = ("config", "settings", "db", "replicationId")
_STREAM = (
    "decode",
    "startingOffsets",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "topic",
    "partitions",
    "eventBytesMax",
)

Places = dict[str, WalPoint]


class Given:
    """Options by their names, as Spark hands them over (lower case)."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._given = {name.lower(): value for name, value in dict(given).items()}
        names = {name.lower(): name for name in known}
        if unknown := sorted(self._given.keys() - names.keys()):
            raise BadOption(f"{what} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default).strip()

    def number(self, name: str, default: int, least: int = 1) -> int:
        text = self.text(name)
        if not text:
            return default
        if not text.isdecimal() or int(text) < least:
            raise BadOption(f"{name}: {text!r} is not a whole number from {least} on")
        return int(text)


@dataclass(frozen=True, slots=True)
class EventRules:
    """How events of a source are made; travels to the workers, which make builders of it."""

    settings: EventSettings
    filters: tuple[str, ...]
    excludes: tuple[str, ...]

    def builder(self) -> EventBuilder:
        return EventBuilder(self.settings, Filter.parse(self.filters, self.excludes))


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a WAL lies that is a stream."""

    brokers: str
    topic: str


@dataclass(frozen=True, slots=True)
class DatabaseSource:
    """One database as the workers see it."""

    name: str
    wal: Path | StreamPlace
    rules: EventRules


@dataclass(frozen=True, slots=True)
class WalOptions:
    databases: tuple[DatabaseSource, ...]
    decode: WalDecode
    starting: str
    """earliest, latest, delivered (AckCP), or offsets as JSON."""
    delivered: Mapping[str, Position]
    records_max: int
    bytes_max: int
    delivery: Delivery | None


def source_config(given: Given) -> Config:
    """The source's settings; an error of theirs is one of ours."""
    settings = given.text("settings", "{}")
    try:
        overrides = json.loads(settings)
    except ValueError as error:
        raise BadOption(f"settings: {settings!r} is not JSON ({error})") from None
    if not isinstance(overrides, dict):
        raise BadOption(f"settings: {settings!r} is not a JSON object of settings")
    texts: list[str] = []
    for name, value in overrides.items():
        texts += [f"{name}={_text(one)}" for one in (value if isinstance(value, list) else [value])]
    try:
        config = load_config(given.text("config") or None, texts, os.environ)
    except PikiwiError as error:
        raise BadOption(str(error)) from None
    return replace(config, passwd="")  # what is made of it travels


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_checkpoint(config: Config) -> Checkpoint | None:
    first = config.databases[0] if config.databases else "db0"
    return CheckpointFile(config.checkpoint_path, config.source, first).load()


def databases_of(config: Config, checkpoint: Checkpoint | None, asked: str = "") -> tuple[str, ...]:
    """Those asked for; else those of the settings; with `all`, those that the receiver has found."""
    names = tuple(name.strip() for name in asked.split(",") if name.strip()) or config.databases
    if not names and checkpoint is not None:
        names = tuple(sorted(checkpoint.databases))
    if not names:
        raise BadOption("db_name is all, and no receiver has found out yet which databases there are: start it first")
    return names


def event_rules(config: Config, database: str, replication_id: str) -> EventRules:
    settings = EventSettings(
        db=database,
        source_id=config.source,
        replication_id=replication_id,
        args_encoding=Encoding(config.args_encoding),
        raw_resp_encoding=Encoding(config.raw_resp_encoding),
        include_raw_resp=config.include_raw_resp,
        partition_by=PartitionBy(config.partition_by),
        pksetexat=Pksetexat(config.pksetexat),
        zero_expiry=ZeroExpiry(config.zero_expiry),
    )
    rules = EventRules(settings, tuple(read_specs(config.filter)), config.exclude)
    rules.builder()  # what is wrong with a filter shows here and not in a task
    return rules


def wal_place(config: Config, database: str) -> Path | StreamPlace:
    if config.wal_backend == "stream":
        return StreamPlace(config.stream_brokers, f"{config.wal_stream_prefix}.{database}")
    return wal_folder(config, database).absolute()


def wal_options(given: Mapping[str, str]) -> WalOptions:
    options = Given(given, SOURCE_OPTIONS + _STREAM, "the pikiwi-wal source")
    config = source_config(options)
    checkpoint = load_checkpoint(config)
    names = databases_of(config, checkpoint, options.text("db"))
    replication_id = options.text("replicationId") or ("" if checkpoint is None else checkpoint.replication_id)
    decode = wal_decode(given)
    delivery = None
    if decode is WalDecode.ORDER:
        if not options.text("topic"):
            raise BadOption("decode is order: say with topic where the messages go")
        limit = options.number("eventBytesMax", config.kafka_message_max_bytes)
        delivery = Delivery(options.text("topic"), options.number("partitions", 1), limit)
    delivered = {
        name: held.ack_cp.position
        for name, held in ({} if checkpoint is None else checkpoint.databases).items()
        if held.ack_cp is not None
    }
    return WalOptions(
        tuple(
            DatabaseSource(name, wal_place(config, name), event_rules(config, name, replication_id)) for name in names
        ),
        decode,
        options.text("startingOffsets", DELIVERED),
        delivered,
        options.number("maxRecordsPerTrigger", RECORDS_MAX_DEFAULT),
        options.number("maxBytesPerTrigger", BYTES_MAX_DEFAULT),
        delivery,
    )


def wal_decode(given: Mapping[str, str]) -> WalDecode:
    """Alone, for the schema: it is asked for before a receiver may have started."""
    text = {name.lower(): value for name, value in dict(given).items()}.get("decode", WalDecode.EVENT.value)
    try:
        return WalDecode(text.strip().lower())
    except ValueError:
        raise BadOption(f"decode: {text!r}; there are {', '.join(way.value for way in WalDecode)}") from None


# --- offsets ----------------------------------------------------------------------------------------------------------


def to_json(places: Mapping[str, WalPoint], delivery: Delivery | None = None) -> dict[str, Any]:
    """`{"db0": {"seq": 7, "filenum": 12, "offset": 3456, "wal_segment": 1, "wal_offset": 890}}`, as in checkpoints."""
    content: dict[str, Any] = {
        name: {
            "seq": seq, "filenum": position.filenum, "offset": position.offset,
            "wal_segment": segment, "wal_offset": offset,
        }
        for name, (seq, position, segment, offset) in sorted(places.items())
    }  # fmt: skip
    if delivery is not None:
        content[DELIVERY] = {"partitions": delivery.partitions, "event_bytes_max": delivery.event_bytes_max}
    return content


def from_json(content: Any) -> Places:
    try:
        return {
            name: WalPoint(
                place["seq"], Position(place["filenum"], place["offset"]), place["wal_segment"], place["wal_offset"]
            )
            for name, place in content.items()
            if name != DELIVERY
        }
    except (KeyError, TypeError, AttributeError):
        raise BadOption(f"offsets: {content!r} are no places in WALs") from None


def delivery_in(content: Mapping[str, Any], otherwise: Delivery) -> Delivery:
    """What holds for the batch that begins at this offset: what held for its first attempt. A topic that takes less by
    now is an exception, since it would refuse the batch for ever: if an attempt has written an event that is too large
    now, the sink notices (RowsDiffer)."""
    held = content.get(DELIVERY)
    if held is None:
        return otherwise
    return Delivery(otherwise.topic, held["partitions"], min(held["event_bytes_max"], otherwise.event_bytes_max))
