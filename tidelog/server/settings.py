"""Every setting of a node: one list, with kind, default and meaning.

A setting `group_initial_rebalance_delay_ms` is written `group.initial.rebalance.delay.ms` in the TOML file, in `--set`
and in Kafka's DescribeConfigs, and `TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS` in the environment. File, environment and
flags are taken in rising order. Those marked `live` can be changed while the node runs (IncrementalAlterConfigs).
"""

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.cluster.configs import COPY_LAG_BYTES, COPY_LAG_MS, DAY_MS, TOPIC_CONFIGS
from tidelog.raft import RaftSettings
from tidelog.storage import StorageSettings
from tidelog.tier.quota import UNBOUNDED

MIB = 1 << 20
ENVIRONMENT_PREFIX = "TIDELOG_"
ROLES = ("config", "data")
TOPIC_DEFAULTS = (
    "retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes", COPY_LAG_MS, COPY_LAG_BYTES
)  # fmt: skip
"""Topic settings that a node has a setting for, `log.` before their names, as Kafka has."""


class SettingsError(ValueError):
    """A setting that does not exist or a value it cannot have."""


def _setting(default: Any, doc: str, *, live: bool = False, low: int | None = 0, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"doc": doc, "live": live, "low": low, "choices": choices})


@dataclass(frozen=True, slots=True)
class Settings:
    node_id: int = _setting(1, "this node's number in the cluster", low=1)
    rack: str = _setting("", "the data centre (rack) the node stands in")
    roles: str = _setting("config,data", "what the node does: `config` (takes part in group 0), `data` (holds streams)")
    cluster_nodes: str = _setting(
        "", "where the config servers' peers listen, as `1@host:port,2@host:port`; empty: a cluster of this node alone"
    )
    data_dir: str = _setting("data", "folder that holds the node's logs")
    log_dirs: str = _setting("", "folders on several disks, as `/disk1/log,/disk2/log`; empty: data.dir alone")
    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(9092, "port to listen on; 0 takes a free one")
    advertised_host: str = _setting("", "host that clients are told; empty: the one listened on")
    advertised_port: int = _setting(0, "port that clients are told; 0: the one listened on")
    peer_host: str = _setting("", "address to listen on for other nodes; empty: the one for clients")
    peer_port: int = _setting(0, "port for other nodes; 0: the one in cluster.nodes, or else a free one")

    storage_sync: str = _setting(
        "fdatasync",
        "when a write counts as durable; `range` and `none` give up promise 1",
        choices=("fdatasync", "range", "none"),
    )
    storage_segment_bytes: int = _setting(256 * MIB, "data of one segment", low=1 * MIB)
    storage_tail_cache_bytes: int = _setting(32 * MIB, "newest entries kept in memory, all streams together", low=1)
    raft_heartbeat_ms: int = _setting(100, "how often a leader with work speaks to its followers", low=1)
    raft_election_timeout_ms: int = _setting(400, "silence after which a follower may campaign", low=2)

    replica_replace_after_ms: int = _setting(300_000, "how long a node may be away before its replicas are replaced")
    leader_balance_ms: int = _setting(5_000, "a stream's leader is moved home at most this often", low=1)
    fill_bytes_per_second: int = _setting(64 * MIB, "read from others to fill new replicas; 0: no bound", live=True)
    retention_check_ms: int = _setting(30_000, "how often old segments are looked for", low=1)

    log_retention_ms: int = _setting(7 * DAY_MS, "retention.ms of topics that do not set it", low=-1)
    log_retention_bytes: int = _setting(-1, "retention.bytes of topics that do not set it", low=-1)
    log_local_retention_ms: int = _setting(-2, "local.retention.ms of topics that do not set it", low=-2)
    log_local_retention_bytes: int = _setting(-2, "local.retention.bytes of topics that do not set it", low=-2)
    log_remote_copy_lag_ms: int = _setting(0, "remote.copy.lag.ms of topics that do not set it", low=-1)
    log_remote_copy_lag_bytes: int = _setting(0, "remote.copy.lag.bytes of topics that do not set it", low=-1)

    remote_log_storage_system_enable: bool = _setting(
        False, "topics may be tiered: closed segments go to an object store (remote.storage.enable of a topic)"
    )
    remote_log_store_url: str = _setting("", "the object store: file:///folder, s3://bucket/prefix, gs://…, az://…")
    remote_log_store_options: str = _setting(
        "", "key=value,… for the store's client (endpoint, region, allow_http); secrets belong in the environment"
    )
    remote_log_compress: bool = _setting(False, "compress what goes to the store (zstd), unless producers did")
    remote_log_key_ring: str = _setting("", "file with keys to encrypt what goes to the store; empty: it is not")
    remote_log_manager_task_interval_ms: int = _setting(30_000, "how often segments to copy are looked for", low=1)
    remote_log_manager_copier_thread_pool_size: int = _setting(4, "segments copied at the same time", low=1)
    remote_log_manager_copy_max_bytes_per_second: int = _setting(UNBOUNDED, "copied to the store", live=True, low=1)
    remote_log_manager_fetch_max_bytes_per_second: int = _setting(UNBOUNDED, "read from the store", live=True, low=1)
    remote_log_roll_ms: int = _setting(3_600_000, "a tiered topic's segment is closed at this age", low=1)
    remote_log_deleted_keep_ms: int = _setting(3_600_000, "a deleted topic's folder is looked into for so long")
    remote_fetch_max_wait_ms: int = _setting(500, "how long a Fetch waits for the store", live=True, low=1)
    remote_list_offsets_request_timeout_ms: int = _setting(30_000, "how long ListOffsets waits for the store", low=1)
    remote_log_index_file_cache_total_size_bytes: int = _setting(
        1024 * MIB, "indexes of remote segments kept on disk", live=True
    )
    remote_log_chunk_cache_total_size_bytes: int = _setting(
        1024 * MIB, "pieces of remote segments kept on disk; 0: none", live=True
    )
    remote_log_chunk_memory_bytes: int = _setting(64 * MIB, "pieces of remote segments kept in memory", low=1 * MIB)
    remote_log_reader_bytes_max: int = _setting(64 * MIB, "on their way from the store at the same time", low=1 * MIB)
    remote_log_reader_prefetch: int = _setting(3, "pieces of 4 MiB fetched ahead of one who reads through")

    connections_max: int = _setting(10_000, "connections above this are closed at once", low=1)
    connections_idle_ms: int = _setting(600_000, "a connection that neither sends nor takes anything is closed", low=1)
    request_bytes_max: int = _setting(100 * MIB, "largest request", low=1024)
    request_control_bytes_max: int = _setting(2 * MIB, "largest request other than Produce", low=1024)
    requests_inflight_max: int = _setting(256, "requests of one connection that are begun and not answered", low=1)
    memory_receive_bytes: int = _setting(
        256 * MIB, "received and not yet in the log's cache; above it clients' sockets are not read", low=4 * MIB
    )
    memory_produce_bytes: int = _setting(24 * MIB, "produced and not yet committed; above it produces wait", low=1)
    memory_fetch_bytes: int = _setting(
        256 * MIB, "fetched and not yet sent; the less is left, the smaller answers become", low=1 * MIB
    )
    fetch_bytes_max: int = _setting(8 * MIB, "largest answer to one Fetch, unless one batch is larger", low=1)

    topic_auto_create: bool = _setting(True, "create topics that clients ask for and that are not there", live=True)
    topic_partitions: int = _setting(1, "partitions of a topic created without a number", live=True, low=1)
    topic_partitions_max: int = _setting(10_000, "most partitions one topic may have", low=1)
    streams_max: int = _setting(20_000, "most partitions of all topics together", low=1)

    quota_write_bytes_per_second: int = _setting(0, "all producers of this node together; 0: no bound", live=True)
    quota_tail_read_bytes_per_second: int = _setting(0, "reads served from memory; 0: no bound", live=True)
    quota_catch_up_read_bytes_per_second: int = _setting(0, "reads served from disk; 0: no bound", live=True)

    group_initial_rebalance_delay_ms: int = _setting(3_000, "how long a new group waits for more members")
    group_min_session_timeout_ms: int = _setting(6_000, "shortest session timeout a member may ask for")
    group_max_session_timeout_ms: int = _setting(1_800_000, "longest session timeout a member may ask for")
    group_max_size: int = _setting(10_000, "most members of one group", low=1)
    group_offsets_retention_ms: int = _setting(604_800_000, "how long offsets outlive their group's last member")
    group_partitions: int = _setting(8, "partitions of the internal topic that holds groups; set once", low=1)
    producer_id_expiration_ms: int = _setting(86_400_000, "an idempotent producer idle for longer is forgotten", low=1)

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check(item, getattr(self, item.name))
        _addresses(self.cluster_nodes)
        if self.remote_log_storage_system_enable and not self.remote_log_store_url:
            raise SettingsError("remote.log.storage.system.enable needs remote.log.store.url")
        if self.log_dirs and self.folders[0] != self.data_dir:
            raise SettingsError(f"data.dir is {self.data_dir!r}; it must be the first of log.dirs, or not be set")
        if not self.role_names or not set(self.role_names) <= set(ROLES):
            raise SettingsError(f"roles is {self.roles!r}; name one or both of {', '.join(ROLES)}")
        if "config" not in self.role_names and self.node_id in (self.config_servers or [self.node_id]):
            raise SettingsError(
                f"roles is {self.roles!r}; the nodes that cluster.nodes lists, and a node that stands alone, keep the "
                "cluster's own log and need the role config"
            )

    @property
    def role_names(self) -> tuple[str, ...]:
        return tuple(sorted({role.strip() for role in self.roles.split(",")} - {""}))

    @property
    def folders(self) -> tuple[str, ...]:
        """All data folders; the first one is `data_dir`."""
        return _folders(self.log_dirs) or (self.data_dir,)

    @property
    def topic_defaults(self) -> dict[str, str]:
        """What holds for topics that do not say otherwise, where that is not the default of the setting itself."""
        found = {name: str(getattr(self, f"log.{name}".replace(".", "_"))) for name in TOPIC_DEFAULTS}
        return {name: value for name, value in found.items() if value != TOPIC_CONFIGS[name].default}

    @property
    def config_servers(self) -> dict[int, tuple[str, int]]:
        """Node -> where its peers reach it."""
        return _addresses(self.cluster_nodes)

    @property
    def storage(self) -> StorageSettings:
        return StorageSettings(segment_bytes=self.storage_segment_bytes, tail_cache_bytes=self.storage_tail_cache_bytes)

    @property
    def raft(self) -> RaftSettings:
        return RaftSettings(heartbeat_ms=self.raft_heartbeat_ms, election_timeout_ms=self.raft_election_timeout_ms)

    def changed(self, texts: Mapping[str, str]) -> "Settings":
        """With some settings, by their dotted names, given as text."""
        values = {field_of(name).name: _parse(field_of(name), text) for name, text in texts.items()}
        return dataclasses.replace(self, **values)


def dotted(field_name: str) -> str:
    return field_name.replace("_", ".")


_BY_NAME = {dotted(item.name): item for item in dataclasses.fields(Settings)}


def field_of(name: str) -> "dataclasses.Field[Any]":
    found = _BY_NAME.get(name)
    if found is None:
        raise SettingsError(f"there is no setting {name!r}; `tidelog server --help` lists them")
    return found


def load_settings(path: str | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Settings:
    """From a TOML file, the environment and flags (dotted names to text), in rising order."""
    texts: dict[str, str] = {}
    if path is not None:
        try:
            with open(path, "rb") as file:
                content = tomllib.load(file)
        except OSError as error:
            raise SettingsError(f"cannot read {path}: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path}: {error}") from None
        texts |= _flatten(content)
    for item in dataclasses.fields(Settings):
        value = environment.get(ENVIRONMENT_PREFIX + item.name.upper())
        if value is not None:
            texts[dotted(item.name)] = value
    texts |= flags
    folders = [os.path.abspath(folder) for folder in _folders(texts.get("log.dirs", ""))]
    if folders:
        texts["log.dirs"] = ",".join(folders)
    texts["data.dir"] = os.path.abspath(texts.get("data.dir", folders[0] if folders else Settings().data_dir))
    return Settings().changed(texts)


def _folders(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _addresses(text: str) -> dict[int, tuple[str, int]]:
    addresses: dict[int, tuple[str, int]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        node, _, address = part.partition("@")
        host, _, port = address.rpartition(":")
        if not (node.isdecimal() and host and port.isdecimal()) or int(node) in addresses:
            raise SettingsError(f"cluster.nodes has {part!r}; write NODE@HOST:PORT, each node once")
        addresses[int(node)] = (host.strip("[]"), int(port))
    return addresses


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            texts |= _flatten(value, f"{prefix}{key}.")
        else:
            texts[prefix + key] = _text(value)
    return texts


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(item: "dataclasses.Field[Any]", text: str) -> object:
    match item.default:
        case bool():
            if text not in ("true", "false"):
                raise SettingsError(f"{dotted(item.name)} is {text!r}; it must be true or false")
            return text == "true"
        case int():
            try:
                return int(text)
            except ValueError:
                raise SettingsError(f"{dotted(item.name)} is {text!r}; it must be a whole number") from None
    return text


def _check(item: "dataclasses.Field[Any]", value: Any) -> None:
    low, choices = item.metadata["low"], item.metadata["choices"]
    if isinstance(value, int) and low is not None and value < low:
        raise SettingsError(f"{dotted(item.name)} is {value}; it must be at least {low}")
    if choices and value not in choices:
        raise SettingsError(f"{dotted(item.name)} is {value!r}; it must be one of {', '.join(choices)}")
