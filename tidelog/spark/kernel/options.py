"""The options of source and sink: names and meaning as in Spark's Kafka source, so that a job moves by its format.

Spark hands options over with lower-case names. An option that is not known, or does not fit another, is an error that
names it: a misspelt one must not be ignored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidelog.spark.errors import BadOption
from tidelog.spark.kernel.offsets import EARLIEST, LATEST, Offsets, Partition, parse_assign, parse_offsets, parse_times
from tidelog.spark.kernel.security_options import PLAINTEXT, SECURITY_OPTIONS, Security, security_of
from tidelog.wire.compression import Codec

Address = tuple[str, int]

BATCH_BYTES_DEFAULT = 896 << 10  # a batch of the sink: below the usual limit of a broker, 1 MiB
REQUEST_BYTES_DEFAULT = 1 << 20
DELIVERY_S_DEFAULT = 120.0
REQUEST_S_DEFAULT = 30.0
FETCH_BYTES_DEFAULT = 8 << 20
RANGE_BYTES_DEFAULT = 64 << 20  # of history, that one task reads

TIER_OPTION = "tier.option."  # what follows goes to the store's client

_SHARED = ("kafka.bootstrap.servers", "kafka.request.timeout.ms", *SECURITY_OPTIONS)
_READ_ONLY = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss", "includeHeaders", "decode",
    "columns", "kafka.max.partition.fetch.bytes", "tier.path", "tier.keyRing", "tier.rangeBytes",
)  # fmt: skip
_WRITE_ONLY = (
    "topic", "checkpointLocation", "commitLocation", "kafka.max.request.size", "kafka.batch.size",
    "kafka.compression.type", "kafka.delivery.timeout.ms",
)  # fmt: skip
_READ = {name.lower(): name for name in _SHARED + _READ_ONLY} | {TIER_OPTION: f"{TIER_OPTION}…"}
_WRITE = {name.lower(): name for name in _SHARED + _WRITE_ONLY} | {"path": "path", "queryname": "queryName"}


class Decode(Enum):
    """What a row of the source is."""

    RAW = "raw"
    RECORD = "record"
    EVENT = "event"
    TYPED = "typed"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Exactly one of the three ways to say which partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class Positions:
    """Where to begin or end: one for all (EARLIEST, LATEST or a time), or by partition; the latter wins."""

    everywhere: int | None = None
    time_ms: int | None = None
    offsets: Mapping[Partition, int] | None = None
    times: Mapping[Partition, int] | None = None


@dataclass(frozen=True, slots=True)
class TierOptions:
    """The object store that history is read from."""

    url: str
    client: Mapping[str, str] = field(repr=False)
    """Options of the store's client, secrets perhaps among them."""
    key_ring: str | None
    """A file where the tasks run; its content does not travel."""
    range_bytes: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    bootstrap: tuple[Address, ...]
    subscription: Subscription
    starting: Positions | None
    """None: as the kind of query has it, earliest for a batch and latest for a stream."""
    ending: Positions
    rows_per_trigger_max: int | None
    partitions_min: int | None
    fail_on_data_loss: bool
    include_headers: bool
    decode: Decode
    columns: tuple[str, ...] | None
    fetch_bytes: int
    request_s: float
    tier: TierOptions | None = None
    security: Security = PLAINTEXT


@dataclass(frozen=True, slots=True)
class WriteOptions:
    bootstrap: tuple[Address, ...]
    topic: str | None
    checkpoint_location: str | None
    commit_location: str | None
    record_bytes_max: int
    batch_bytes: int
    codec: Codec
    delivery_s: float
    request_s: float
    security: Security = PLAINTEXT


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """`streaming` says which kind of query it is for, None that this is not known yet."""
    options = _Options(given, _READ, "the tidelog source")
    starting = _starting(options)
    ending = options.text("endingOffsets")
    if ending is not None and streaming:
        raise BadOption("endingOffsets: a streaming query has no end; use it with spark.read only")
    if options.text("maxOffsetsPerTrigger") is not None and streaming is False:
        raise BadOption("maxOffsetsPerTrigger: a batch query has no triggers; use it with spark.readStream only")
    return ReadOptions(
        bootstrap=_bootstrap(options),
        subscription=_subscription(options),
        starting=starting,
        ending=Positions(everywhere=LATEST) if ending is None else _offsets(ending, "endingOffsets"),
        rows_per_trigger_max=options.number("maxOffsetsPerTrigger", 1),
        partitions_min=options.number("minPartitions", 1),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
        decode=_decode(options),
        columns=_columns(options),
        fetch_bytes=options.number("kafka.max.partition.fetch.bytes", 1024) or FETCH_BYTES_DEFAULT,
        request_s=_seconds(options, "kafka.request.timeout.ms", REQUEST_S_DEFAULT),
        tier=_tier(options),
        security=security_of(options),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = _Options(given, _WRITE, "the tidelog sink")
    if options.text("path") is not None:
        raise BadOption(
            "path: the sink writes to topics; name one with the option topic, or with a column of that name"
        )
    record_bytes = options.number("kafka.max.request.size", 1024) or REQUEST_BYTES_DEFAULT
    codec = (options.text("kafka.compression.type") or "none").upper()
    if codec not in Codec.__members__:
        raise BadOption(f"kafka.compression.type: {codec.lower()}; there are none, gzip, snappy, lz4 and zstd")
    return WriteOptions(
        bootstrap=_bootstrap(options),
        topic=options.text("topic"),
        checkpoint_location=options.text("checkpointLocation"),
        commit_location=options.text("commitLocation"),
        record_bytes_max=record_bytes,
        batch_bytes=min(options.number("kafka.batch.size", 1024) or BATCH_BYTES_DEFAULT, record_bytes),
        codec=Codec[codec],
        delivery_s=_seconds(options, "kafka.delivery.timeout.ms", DELIVERY_S_DEFAULT),
        request_s=_seconds(options, "kafka.request.timeout.ms", REQUEST_S_DEFAULT),
        security=security_of(options),
    )


class _Options:
    """Options by the names that the documentation has."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str], what: str) -> None:
        self._given = {name.lower(): value for name, value in dict(given).items()}
        named = {name for name in self._given if TIER_OPTION not in known or not name.startswith(TIER_OPTION)}
        if unknown := sorted(named - known.keys()):
            raise BadOption(f"{what} has no option {', '.join(unknown)}; it has {', '.join(sorted(known.values()))}")

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return None if value is None else value.strip()

    def beginning_with(self, prefix: str) -> dict[str, str]:
        """The options whose names begin so, by the rest of their names."""
        return {name.removeprefix(prefix): self._given[name] for name in self._given if name.startswith(prefix)}

    def number(self, name: str, least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < least:
            raise BadOption(f"{name}: {text!r} is not a whole number from {least} on")
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise BadOption(f"{name}: {text!r} is neither true nor false")
        return text.lower() == "true"


def _bootstrap(options: _Options) -> tuple[Address, ...]:
    text = options.text("kafka.bootstrap.servers")
    if not text:
        raise BadOption("kafka.bootstrap.servers is missing: say where the cluster is, as HOST:PORT[,HOST:PORT…]")
    addresses: list[Address] = []
    for address in text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise BadOption(f"kafka.bootstrap.servers: {address.strip()!r} is not HOST:PORT")
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)


def _seconds(options: _Options, name: str, default: float) -> float:
    milliseconds = options.number(name, 1)
    return default if milliseconds is None else milliseconds / 1000


def _subscription(options: _Options) -> Subscription:
    ways = ("subscribe", "subscribePattern", "assign")
    given = [name for name in ways if options.text(name) is not None]
    if len(given) != 1:
        raise BadOption(f"give exactly one of {', '.join(ways)}; there {'is none' if not given else 'are several'}")
    text = options.text(given[0]) or ""
    if given[0] == "assign":
        return Subscription(partitions=tuple(parse_assign(text)))
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise BadOption(f"subscribePattern: {text!r} is no regular expression ({error})") from None
        return Subscription(pattern=text)
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise BadOption("subscribe: it names no topic")
    return Subscription(topics=topics)


def _starting(options: _Options) -> Positions | None:
    """As in Spark, a time for all wins over times by partition, and these over offsets."""
    time_ms = options.number("startingTimestamp", 0)
    if time_ms is not None:
        return Positions(time_ms=time_ms)
    times = options.text("startingOffsetsByTimestamp")
    if times is not None:
        return Positions(times=parse_times(times, "startingOffsetsByTimestamp"))
    offsets = options.text("startingOffsets")
    return None if offsets is None else _offsets(offsets, "startingOffsets")


def _offsets(text: str, option: str) -> Positions:
    if text.lower() in {"earliest", "latest"}:
        if (text.lower(), option) == ("earliest", "endingOffsets"):
            raise BadOption("endingOffsets: it cannot be earliest")
        return Positions(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    offsets: Offsets = parse_offsets(text, option)
    if option == "endingOffsets" and EARLIEST in offsets.values():
        raise BadOption("endingOffsets: it cannot be earliest (-2)")
    return Positions(offsets=offsets)


def _decode(options: _Options) -> Decode:
    text = options.text("decode") or Decode.RECORD.value
    try:
        return Decode(text.lower())
    except ValueError:
        raise BadOption(f"decode: {text!r}; there are {', '.join(way.value for way in Decode)}") from None


def _tier(options: _Options) -> TierOptions | None:
    url, client = options.text("tier.path"), options.beginning_with(TIER_OPTION)
    if url is None:
        lonely = [name for name in ("tier.keyRing", "tier.rangeBytes") if options.text(name) is not None]
        if lonely or client:
            raise BadOption(f"{', '.join(lonely or sorted(client))}: it means nothing without tier.path")
        return None
    if "://" not in url:
        raise BadOption(f"tier.path: {url!r} is no store; write file:///folder, s3://bucket/prefix, gs://… or az://…")
    range_bytes = options.number("tier.rangeBytes", 1 << 16) or RANGE_BYTES_DEFAULT
    return TierOptions(url, client, options.text("tier.keyRing"), range_bytes)


def _columns(options: _Options) -> tuple[str, ...] | None:
    text = options.text("columns")
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) != len(names):
        raise BadOption(f"columns: {text!r} names no column, or one twice")
    return names
