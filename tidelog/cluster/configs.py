"""What can be set on a topic: names, kinds, bounds and defaults, as Kafka calls them.

A topic holds only what was set, as text; `TopicConfig` is the typed whole that the server works with.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
DAY_MS = 86_400_000
NAME_LENGTH_MAX = 249
TYPED_MAX = 256  # sets of settings that are kept as `TopicConfig`
"""As long as a topic's name may be."""
ATTACHED = "remote.log.attached"
COPY_LAG_MS, COPY_LAG_BYTES = "remote.copy.lag.ms", "remote.copy.lag.bytes"
AS_LATE_AS_POSSIBLE = "-1"
_TOPIC_FOLDER = re.compile(r"[a-zA-Z0-9._-]{1,249}-[a-zA-Z0-9_-]{22}")


class ConfigKind(IntEnum):
    """The protocol's numbers for a setting's type (DescribeConfigs)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class InvalidConfigError(ValueError):
    """A name that is no setting, or a value it cannot have."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    kind: ConfigKind
    default: str
    check: Callable[[str], None]
    doc: str


def _whole(low: int, high: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        try:
            number = int(value)
        except ValueError:
            raise InvalidConfigError(f"{value!r} is not a whole number") from None
        if not low <= number <= high:
            raise InvalidConfigError(f"{number} is not between {low} and {high}")

    return check


def _one_of(*choices: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in choices:
            raise InvalidConfigError(f"{value!r} is not one of {', '.join(choices)}")

    return check


def _text(length_max: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        if len(value) > length_max:
            raise InvalidConfigError(f"{len(value)} characters are more than {length_max}")

    return check


def _stream_folder(value: str) -> None:
    """A topic's name, a dash, 22 characters of its id; empty: none."""
    if value and not _TOPIC_FOLDER.fullmatch(value):
        raise InvalidConfigError(f"{value[: 2 * NAME_LENGTH_MAX]!r} is no topic's folder: NAME-ID, as the store has it")


TOPIC_CONFIGS: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(
            "cleanup.policy", ConfigKind.LIST, "delete", _one_of("delete"),
            "old records are deleted by age and size; a log whose content never changes is not compacted",
        ),
        ConfigKey(
            "compression.type", ConfigKind.STRING, "producer", _one_of("producer"),
            "batches are kept as the producer compressed them",
        ),
        ConfigKey(
            "leader.rack", ConfigKind.STRING, "", _text(NAME_LENGTH_MAX),
            "data centre (rack) that leaders are moved to when a replica there can lead; empty: any",
        ),
        ConfigKey(
            "local.retention.bytes", ConfigKind.LONG, "-2", _whole(-2, INT64_MAX),
            "of a tiered topic: size above which segments that are in the store leave the disk; -2: as retention.bytes",
        ),
        ConfigKey(
            "local.retention.ms", ConfigKind.LONG, "-2", _whole(-2, INT64_MAX),
            "of a tiered topic: age above which segments that are in the store leave the disk; -2: as retention.ms",
        ),
        ConfigKey(
            "max.message.bytes", ConfigKind.INT, str(1_048_588), _whole(0, 64 << 20),
            "largest record batch that is accepted, in bytes",
        ),
        ConfigKey(
            "message.timestamp.type", ConfigKind.STRING, "CreateTime", _one_of("CreateTime", "LogAppendTime"),
            "whether a record's time is the producer's, or the moment the leader took it",
        ),
        ConfigKey(
            "min.insync.replicas", ConfigKind.INT, "1", _whole(1, INT32_MAX),
            "kept for tools that set it; a record is acknowledged when a majority has it on disk, whatever this says",
        ),
        ConfigKey(
            COPY_LAG_BYTES, ConfigKind.LONG, "0", _whole(-1, INT64_MAX),
            "a closed segment is copied when so much lies from its beginning on; 0: at once, -1: as late as local "
            "retention allows, which is meant too when only remote.copy.lag.ms is set",
        ),
        ConfigKey(
            COPY_LAG_MS, ConfigKind.LONG, "0", _whole(-1, INT64_MAX),
            "a closed segment is copied when it is so old; 0: at once, -1: as late as local retention allows, which is "
            "meant too when only remote.copy.lag.bytes is set",
        ),
        ConfigKey(
            ATTACHED, ConfigKind.STRING, "", _stream_folder,
            "folder in the store of another cluster's topic, which this one shows and never changes; said when "
            "the topic is made",
        ),
        ConfigKey(
            "remote.log.copy.disable", ConfigKind.BOOLEAN, "false", _one_of("true", "false"),
            "nothing more is copied to the store; what is there can be read",
        ),
        ConfigKey(
            "remote.log.delete.on.disable", ConfigKind.BOOLEAN, "false", _one_of("true", "false"),
            "when remote.storage.enable is taken back, what is in the store is deleted",
        ),
        ConfigKey(
            "remote.storage.enable", ConfigKind.BOOLEAN, "false", _one_of("true", "false"),
            "closed segments are copied to the object store, and may leave the disk then",
        ),
        ConfigKey(
            "retention.bytes", ConfigKind.LONG, "-1", _whole(-1, INT64_MAX),
            "size above which the oldest segments are deleted; -1: no bound",
        ),
        ConfigKey(
            "retention.ms", ConfigKind.LONG, str(7 * DAY_MS), _whole(-1, INT64_MAX),
            "age above which the oldest segments are deleted; -1: never",
        ),
        ConfigKey(
            "segment.ms", ConfigKind.LONG, str(7 * DAY_MS), _whole(1, INT64_MAX),
            "age above which a segment is closed though it is not full, so that it can be deleted or copied",
        ),
    )
}  # fmt: skip


def check_topic_config(name: str, value: str | None) -> None:
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise InvalidConfigError(f"there is no topic setting {name!r}; there are {', '.join(TOPIC_CONFIGS)}")
    if value is None:
        raise InvalidConfigError(f"{name}: a value is needed")
    try:
        key.check(value)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{name}: {error}") from None


def check_tiering(configs: Mapping[str, str], before: Mapping[str, str] | None, *, available: bool) -> None:
    """Whether a topic's settings about tiers go together (KIP-405, KIP-950).

    `before` are those it has had so far; None: it is about to be made.
    `available`: the cluster has an object store.
    """
    new, old = TopicConfig.of(configs), TopicConfig.of(before or {})
    if new.remote and not available:
        raise InvalidConfigError("remote.storage.enable: the nodes have no store (remote.log.storage.system.enable)")
    if old.remote and not new.remote and not new.remote_delete_on_disable:
        raise InvalidConfigError(
            "remote.storage.enable: to stop tiering, set remote.log.delete.on.disable=true with it, which deletes what "
            "is in the store; or keep that readable with remote.log.copy.disable=true"
        )
    if new.attached != old.attached and before is not None:
        raise InvalidConfigError(f"{ATTACHED}: what a topic shows is said when it is made, and does not change")
    if new.attached and not available:
        raise InvalidConfigError(f"{ATTACHED}: the nodes have no store (remote.log.storage.system.enable)")
    if new.attached and new.remote:
        raise InvalidConfigError(f"{ATTACHED}: such a topic is in the store already; leave remote.storage.enable alone")
    for name, local, total, lag in (
        ("local.retention.ms", new.local_retention_ms, new.retention_ms, new.copy_lag_ms),
        ("local.retention.bytes", new.local_retention_bytes, new.retention_bytes, new.copy_lag_bytes),
    ):
        if local != -2 and total >= 0 and not 0 <= local <= total:
            raise InvalidConfigError(f"{name} is {local}; it must not be more than {name[6:]}, which is {total}")
        if new.remote and not new.remote_copy and local not in (-2, total):
            raise InvalidConfigError(f"{name}: with remote.log.copy.disable it must be -2 or as {name[6:]}")
        on_disk = total if local == -2 else local
        if new.remote and 0 <= on_disk < lag:
            unit = name.rpartition(".")[2]
            raise InvalidConfigError(f"remote.copy.lag.{unit} is {lag}; what stays on disk is bounded by {on_disk}")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings, typed, with defaults filled in."""

    max_message_bytes: int
    append_time: bool
    retention_bytes: int
    retention_ms: int
    segment_ms: int = 7 * DAY_MS
    leader_rack: str | None = None
    """The data centre that shall lead; None: any."""
    remote: bool = False
    """Closed segments go to the object store."""
    remote_copy: bool = True
    remote_delete_on_disable: bool = False
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    copy_lag_bytes: int = 0
    copy_lag_ms: int = 0
    attached: str = ""
    """The folder in the store of another cluster's topic that this one shows; empty: it has records of its own."""

    @staticmethod
    def of(configs: Mapping[str, str]) -> "TopicConfig":
        return _typed(tuple(configs.items()))


@lru_cache(TYPED_MAX)
def _typed(configs: tuple[tuple[str, str], ...]) -> TopicConfig:
    """Most topics have one of few sets of settings, and every change of a stream asks for its topic's."""
    given = dict(configs)

    for one, other in ((COPY_LAG_MS, COPY_LAG_BYTES), (COPY_LAG_BYTES, COPY_LAG_MS)):
        if one in given:  # either is enough to copy: one that is not set must not undo the other
            given.setdefault(other, AS_LATE_AS_POSSIBLE)

    def value(name: str) -> str:
        return given.get(name, TOPIC_CONFIGS[name].default)

    return TopicConfig(
        max_message_bytes=int(value("max.message.bytes")),
        append_time=value("message.timestamp.type") == "LogAppendTime",
        retention_bytes=int(value("retention.bytes")),
        retention_ms=int(value("retention.ms")),
        segment_ms=int(value("segment.ms")),
        leader_rack=value("leader.rack") or None,
        remote=value("remote.storage.enable") == "true",
        remote_copy=value("remote.log.copy.disable") == "false",
        remote_delete_on_disable=value("remote.log.delete.on.disable") == "true",
        local_retention_bytes=int(value("local.retention.bytes")),
        local_retention_ms=int(value("local.retention.ms")),
        copy_lag_bytes=int(value(COPY_LAG_BYTES)),
        copy_lag_ms=int(value(COPY_LAG_MS)),
        attached=value(ATTACHED),
    )
