"""Settings: the Go tool's files as they are, TOML, what goes on top of them, and that no mistake passes in silence."""

from pathlib import Path

import pytest

from tidelog.pikiwi.config import ALIASES, FIELDS, WITHOUT_EFFECT, Config, load_config
from tidelog.pikiwi.errors import EXIT_SETTINGS, ConfigError
from tidelog.pikiwi.position import Position

PORT = "master_port=9221"

# Every key that the Go tool knows, with a value that is not its default.
GO_TOOL = """
# a comment
; another
 master_ip = 10.0.0.1
MASTER_PORT=9222
local_ip=10.0.0.9
local_port=21444
passwd=secret=with=signs ; and # more
db_name=db1
log_path=./log/
log_rotate_interval=3600
dump_path=./dumps
checkpoint_path=./state/checkpoint.json
kafka_brokers=k1:9092,k2:9092
kafka_client_id=me
kafka_stream_mode=single
kafka_topic_snapshot=s
kafka_topic_binlog=b
kafka_topic_single=all
kafka_message_max_bytes=2000000
kafka_enable_idempotence=no
wal_dir=./journal/
wal_segment_bytes=1048576
wal_sync_every=10
wal_retain_segments=3
snapshot_batch_num=100
snapshot_workers=8
snapshot_reader_mode=single
snapshot_reader_types=string,hash
snapshot_reader_prefixes=dev:,prod:
snapshot_cgo_batch=32
snapshot_scan_batch=10
snapshot_scan_strategy=scanx
snapshot_list_tail_n=7
sync_protocol=auto
wait_bgsave_timeout=60
pb_ack_delay_warn=20
pb_idle_timeout=40
initial_full_sync=false
sync_point_purged_action=PAUSE
start_from_master=0
source_id=here
filenum=12
offset=3456
binlog_workers=2
binlog_queue_size=100
window_slots=32
sender_batch_size=64
binlog_progress_interval=1
args_encoding=none
raw_resp_encoding=b64
include_raw_resp=n
filter=key=dev:*;type=list;action=rpush
filter=key=prod:*
exclude=tmp:*,bad:*
exclude_keys=secret:*
"""


def write(folder: Path, text: str, name: str = "pika.conf") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_key_of_the_go_tools_file_is_read_as_it_is(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GO_TOOL))

    assert config == Config(
        master_ip="10.0.0.1", master_port=9222, local_ip="10.0.0.9", local_port=21_444,
        passwd="secret=with=signs ; and # more", db_name="db1", log_path="./log/", log_rotate_interval=3600,
        dump_path=Path("dumps"), checkpoint_path=Path("state/checkpoint.json"), kafka_brokers="k1:9092,k2:9092",
        kafka_client_id="me", kafka_stream_mode="single", kafka_topic_snapshot="s", kafka_topic_binlog="b",
        kafka_topic_single="all", kafka_message_max_bytes=2_000_000, kafka_enable_idempotence=False,
        wal_dir=Path("journal"), wal_segment_bytes=1 << 20, wal_retain_segments=3, snapshot_batch_num=100,
        snapshot_workers=8, snapshot_reader_mode="single", snapshot_reader_types="string,hash",
        snapshot_reader_prefixes="dev:,prod:", snapshot_list_tail_n=7, wait_bgsave_timeout=60, pb_ack_delay_warn=20,
        pb_idle_timeout=40, initial_full_sync=False, sync_point_purged_action="pause", source_id="here", filenum=12,
        offset=3456, binlog_progress_interval=1, args_encoding="none", include_raw_resp=False,
        filter=("key=dev:*;type=list;action=rpush", "key=prod:*"), exclude=("tmp:*,bad:*", "secret:*"),
        notes=config.notes,
    )  # fmt: skip


def test_what_has_no_effect_is_taken_with_the_reason(tmp_path: Path) -> None:
    notes = load_config(write(tmp_path, GO_TOOL)).notes

    assert {note.split(" ")[0] for note in notes} == set(WITHOUT_EFFECT)
    assert "wal_sync_every has no effect: nothing is acknowledged before it is synced" in "\n".join(notes)


def test_defaults_are_the_go_tools() -> None:
    config = load_config(None, [PORT])

    assert (config.master_ip, config.local_ip, config.registered_port) == ("127.0.0.1", "127.0.0.1", 21_333)
    assert (config.wal_segment_bytes, config.wal_retain_segments) == (268_435_456, 2)
    assert (config.dump_path, config.wal_dir, config.checkpoint_path) == (
        Path("rsync_dump"), Path("wal"), Path("checkpoint.json"),
    )  # fmt: skip
    assert (config.wait_bgsave_timeout, config.pb_idle_timeout, config.pb_ack_delay_warn) == (1800, 30, 10)
    assert (config.databases, config.source, config.start_position) == (("db0",), "127.0.0.1:9221", None)
    assert (config.initial_full_sync, config.sync_point_purged_action) == (True, "full_sync")
    assert config.status_file == Path("checkpoint.status.json")
    assert config.notes == ()


def test_toml_has_the_same_keys(tmp_path: Path) -> None:
    text = """
master_port = 9221
db_name = "db0, db2"
wal_dir = "w"
start_from_master = true
filter = ["key=a*", "type=list"]
exclude = "tmp:*"
passwd = " keep # this "
"""
    config = load_config(write(tmp_path, text, "source.toml"))

    assert (config.databases, config.wal_dir, config.start_from_master) == (("db0", "db2"), Path("w"), True)
    assert (config.filter, config.exclude) == (("key=a*", "type=list"), ("tmp:*",))
    assert config.passwd == " keep # this "


def test_environment_and_flags_come_on_top(tmp_path: Path) -> None:
    path = write(tmp_path, f"{PORT}\npasswd=file\nkafka_client_id=file\nfilter=key=a\n")
    environment = {"TIDELOG_PIKIWI_PASSWD": "environment", "TIDELOG_PIKIWI_KAFKA_CLIENT_ID": "e", "HOME": "/"}
    config = load_config(path, ["kafka_client_id=flag", "filter=key=b"], environment)

    assert (config.passwd, config.kafka_client_id, config.filter) == ("environment", "flag", ("key=a", "key=b"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("wal_segment_byte=1", "line 2: there is no setting 'wal_segment_byte'; did you mean wal_segment_bytes?"),
        ("master_port", "line 2: 'master_port' is no key=value"),
        ("=5", "line 2: '=5' is no key=value"),
        ("master_port=x", "line 2: master_port is 'x'; write a whole number"),
        ("master_port=60000", "line 2: master_port is 60000; it has to be 0 to 55534"),
        ("local_port=-1", "line 2: local_port is -1; it has to be 0 to 65535"),
        ("wal_retain_segments=0", "line 2: wal_retain_segments is 0; it has to be at least 1"),
        ("wal_bytes_max=1000000000", "line 2: wal_bytes_max is 1000000000; with these wal_segment_bytes"),
        ("kafka_enable_idempotence=perhaps", "line 2: kafka_enable_idempotence is 'perhaps'; write true or false"),
        ("kafka_stream_mode=triple", "line 2: kafka_stream_mode is 'triple'; choose one of dual, single"),
        ("sync_point_purged_action=explode", "choose one of full_sync, start_from_master, pause"),
        ("wal_dir=", "line 2: wal_dir is empty"),
        ("filenum=5", "filenum and offset make one position"),
        ("offset=5", "filenum and offset make one position"),
        ("db_name=db0,db0", "name each database once"),
        ("db_name=mydb", "databases are called db0, db1 and so on"),
        ("db_name=../etc", "databases are called db0, db1 and so on"),
        ("snapshot_batch_num=1_0", "write a whole number"),
    ],
)
def test_mistakes_are_errors_that_say_where(tmp_path: Path, line: str, why: str) -> None:
    path = write(tmp_path, f"{PORT}\n{line}\n")

    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert why in str(raised.value)
    assert raised.value.exit_status == EXIT_SETTINGS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("master_port = 9221\nmaster_por = 1\n", "line 2: there is no setting 'master_por'"),
        ("master_port = 9221\n\nwal_dir = 5\n", "line 3: wal_dir is 5; write a text"),
        ("master_port = 1.5\n", "line 1: master_port is 1.5; write a whole number"),
        ("master_port = true\n", "line 1: master_port is True; write a whole number"),
        ("master_port = 9221\n[wal]\ndir = 'x'\n", "line 2: there is no setting 'wal'"),
        ("master_port = ", "is no TOML"),
    ],
)
def test_mistakes_in_toml_too(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(write(tmp_path, text, "source.toml"))
    assert why in str(raised.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        load_config(tmp_path / "none.conf")
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no text"):
        load_config(tmp_path / "binary.conf")


def test_the_masters_port_is_required() -> None:
    with pytest.raises(ConfigError, match="master_port is not set"):
        load_config(None)


# --- where to begin ---


def test_starts_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="filenum/offset and start_from_master exclude each other"):
        load_config(None, [PORT, "filenum=1", "offset=2", "start_from_master=true"])
    for other in (["filenum=1", "offset=2"], ["start_from_master=true"]):
        with pytest.raises(ConfigError, match=r"--set initial_full_sync: initial_full_sync and .* exclude each other"):
            load_config(None, [PORT, "initial_full_sync=true", *other])


def test_the_default_start_gives_way_to_a_chosen_one() -> None:
    chosen = load_config(None, [PORT, "filenum=0", "offset=0"])
    assert (chosen.start_position, chosen.initial_full_sync) == (Position(0, 0), False)
    assert load_config(None, [PORT, "start_from_master=true"]).initial_full_sync is False
    assert load_config(None, [PORT, "start_from_master=false"]).initial_full_sync is True
    assert load_config(None, [PORT, "initial_full_sync=false"]).initial_full_sync is False


def test_the_password_is_not_shown_with_the_settings() -> None:
    config = load_config(None, [PORT, "passwd=secret"])

    assert config.passwd == "secret"
    assert "secret" not in repr(config)


def test_what_of_a_dump_is_read() -> None:
    assert load_config(None, [PORT]).snapshot_types is None
    assert load_config(None, [PORT]).snapshot_prefixes is None
    chosen = load_config(None, [PORT, "snapshot_reader_types=string, zset", "snapshot_reader_prefixes=dev:,prod:"])
    assert (chosen.snapshot_types, chosen.snapshot_prefixes) == (("string", "zset"), ("dev:", "prod:"))
    with pytest.raises(ConfigError, match="snapshot_reader_types names 'strings'; write auto"):
        load_config(None, [PORT, "snapshot_reader_types=strings"])


def test_databases() -> None:
    assert load_config(None, [PORT, "db_name=all"]).databases == ()
    assert load_config(None, [PORT, "db_name=db0,db7"]).databases == ("db0", "db7")


# --- the list itself ---


def test_every_setting_is_explained_and_no_name_has_two_meanings() -> None:
    for item in FIELDS.values():
        assert item.metadata["doc"], item.name
    assert not set(FIELDS) & set(WITHOUT_EFFECT)
    assert not set(FIELDS) & set(ALIASES)
    assert set(ALIASES.values()) <= set(FIELDS)


def test_the_guides_example_can_be_used(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "pikiwi.md").read_text(encoding="utf-8")
    example = guide.split("```toml\n")[1].split("```")[0]
    config = load_config(write(tmp_path, example, "source.toml"))

    assert (config.source, config.databases, config.metrics_port) == ("10.0.0.1:9221", ("db0",), 9461)


def test_the_guide_explains_every_setting() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "pikiwi.md").read_text(encoding="utf-8")

    for name, item in FIELDS.items():
        assert f"| `{name}` |" in guide, f"docs/pikiwi.md does not mention {name}"
        assert item.metadata["doc"] in guide, f"docs/pikiwi.md does not explain {name} as the code does"
    for name, reason in WITHOUT_EFFECT.items():
        assert f"| `{name}` |" in guide
        assert reason in guide
