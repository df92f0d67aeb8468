import base64
import json
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pikiwi.recorded_commands import VERSIONS, recorded
from tidelog.pikiwi.binlog import BinlogItem, encode_item
from tidelog.pikiwi.commands import ZeroExpiry
from tidelog.pikiwi.errors import ProtocolError, RespError
from tidelog.pikiwi.event import Event, EventBuilder, EventSettings, Pksetexat
from tidelog.pikiwi.filter import Filter
from tidelog.pikiwi.keys import Encoding, PartitionBy
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import RespLimits, encode_command, parse_command

END = Position(12, 34610)
DEFAULTS = EventSettings("db0", "10.0.0.1:9221", "dfe36f")
GOLDEN = (
    '{"event_type":"binlog","op":"set","data_type":"string","db":"db0","slot":0,"key":"k",'
    '"args":["U0VU","aw==","dg=="],"args_encoding":"base64",'
    '"raw_resp":"KjMNCiQzDQpTRVQNCiQxDQprDQokMQ0Kdg0K","raw_resp_encoding":"base64","ts_ms":1700000000000,'
    '"event_id":"7:12:34567:8899","source_id":"10.0.0.1:9221",'
    '"binlog":{"filenum":12,"offset":34567,"logic_id":8899,"server_id":0,"term_id":7},'
    '"source":{"host":"10.0.0.1","port":9221}}'
)


def payload(*args: bytes) -> bytes:
    return encode_item(BinlogItem(1_700_000_000, 7, 8899, Position(12, 34567), encode_command(args)))


def event_of(*args: bytes, settings: EventSettings = DEFAULTS, chosen: Filter | None = None) -> Event | None:
    return EventBuilder(settings, chosen or Filter()).binlog_event(END, payload(*args))


def sent(*args: bytes, settings: EventSettings = DEFAULTS) -> Event:
    event = event_of(*args, settings=settings)
    assert event is not None
    return event


def fields(*args: bytes, settings: EventSettings = DEFAULTS) -> dict[str, Any]:
    return json.loads(sent(*args, settings=settings).value)


def decoded(text: str, encoding: str) -> bytes:
    return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()


@dataclass
class Snapshot:
    data_type: str
    key: bytes
    args: tuple[bytes, ...]
    batch: int = 0


def snapshot_of(command: Snapshot, settings: EventSettings = DEFAULTS, chosen: Filter | None = None) -> Event | None:
    return EventBuilder(settings, chosen or Filter()).snapshot_event(command, Position(3, 44), 1_700_000_000_123)


# The seed's format


def test_the_seeds_golden_example_comes_out_byte_for_byte_before_what_is_added() -> None:
    value = sent(b"SET", b"k", b"v").value.decode()
    added = ',"key_encoding":"none","effect":"idempotent","position":"dfe36f/db0/12/34610"}'
    assert value == GOLDEN[:-1] + added


def test_a_snapshot_event_has_the_seeds_fields_in_their_order() -> None:
    event = snapshot_of(Snapshot("hash", b"h", (b"HMSET", b"h", b"f", b"v"), 2))
    assert event is not None
    assert event.value.decode() == (
        '{"event_type":"snapshot","op":"hmset","data_type":"hash","db":"db0","slot":0,"key":"h",'
        '"args":["SE1TRVQ=","aA==","Zg==","dg=="],"args_encoding":"base64",'
        f'"raw_resp":"{base64.b64encode(encode_command([b"HMSET", b"h", b"f", b"v"])).decode()}",'
        '"raw_resp_encoding":"base64","ts_ms":1700000000123,"event_id":"snapshot:db0:hash:h:2",'
        '"source_id":"10.0.0.1:9221","source":{"host":"10.0.0.1","port":9221},'
        '"key_encoding":"none","effect":"idempotent","position":"dfe36f/db0/3/44"}'
    )
    assert (event.key, event.broadcast) == (b"db0:h", False)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_command_becomes_an_event_that_says_the_same(version: str) -> None:
    builder = EventBuilder(DEFAULTS)
    for end, item in recorded(version):
        event = builder.binlog_event(end, encode_item(item))
        assert event is not None
        assert not event.broadcast
        value = json.loads(event.value)
        args = parse_command(item.content)
        key = args[1]
        assert value["ts_ms"] == item.exec_time_s * 1000
        assert value["event_id"] == f"{item.term_id}:{item.start.filenum}:{item.start.offset}:{item.logic_id}"
        assert value["position"] == f"dfe36f/db0/{end.filenum}/{end.offset}"
        assert decoded(value["key"], value["key_encoding"]) == key
        assert event.key == b"db0:" + key
        said = [decoded(arg, "base64") for arg in value["args"]]
        assert encode_command(said) == decoded(value["raw_resp"], "base64")
        if args[0] == b"pksetexat":
            assert value["op"] == "set"
            assert said[:3] == [b"SET", key, args[3]]
            assert said[3:] == [] if args[2] == b"0" else said[4] == args[2]
        else:
            assert said == args
            assert value["op"] == args[0].decode().lower()


def test_settings_of_encodings_and_of_the_raw_command() -> None:
    text = EventSettings("db0", "s", args_encoding=Encoding.NONE, raw_resp_encoding=Encoding.NONE)
    value = fields(b"SET", b"k", 'a"\\\n\x00ж'.encode(), settings=text)
    assert value["args"] == ["SET", "k", 'a"\\\n\x00ж']
    assert value["raw_resp"] == '*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$7\r\na"\\\n\x00ж\r\n'
    assert (value["args_encoding"], value["raw_resp_encoding"]) == ("none", "none")
    bare = fields(b"SET", b"k", b"v", settings=EventSettings("db0", "s", include_raw_resp=False))
    assert "raw_resp" not in bare
    assert "raw_resp_encoding" not in bare


def test_bytes_that_are_no_utf8_are_base64_whatever_is_set_and_the_event_says_so() -> None:
    text = EventSettings("db0", "s", args_encoding=Encoding.NONE, raw_resp_encoding=Encoding.NONE)
    value = fields(b"SET", b"k", b"\xff", settings=text)
    assert (value["args_encoding"], value["raw_resp_encoding"]) == ("base64", "base64")
    assert value["args"] == ["U0VU", "aw==", "/w=="]


@pytest.mark.parametrize(
    ("source_id", "source"),
    [
        ("10.0.0.1:9221", {"host": "10.0.0.1", "port": 9221}),
        ("[::1]:9221", {"host": "[::1]", "port": 9221}),
        ("the shop", {"host": "the shop"}),
        ("a:b", {"host": "a:b"}),
        ("a:09", {"host": "a:09"}),
        ('50%s "x"', {"host": '50%s "x"'}),
    ],
)
def test_the_source_is_taken_from_its_id(source_id: str, source: dict[str, object]) -> None:
    value = fields(b"SET", b"k", b"v", settings=EventSettings("db0", source_id, "100%d"))
    assert (value["source_id"], value["source"]) == (source_id, source)
    assert value["position"] == "100%d/db0/12/34610"


# What is better than in the seed's tool


def test_defect_3_all_events_of_a_key_have_one_partition_key() -> None:
    lines = [b"SET k v", b"del k", b"expireat k 5", b"pksetexat k 5 v", b"rpush k a", b"xadd k 1-1 a b", b"what k"]
    assert {sent(*line.split()).key for line in lines} == {b"db0:k"}


def test_defect_3_the_seeds_partition_key_is_a_setting() -> None:
    by_type = EventSettings("db0", "s", partition_by=PartitionBy.DB_TYPE_KEY)
    assert sent(b"SET", b"k", b"v", settings=by_type).key == b"db0:string:k"
    assert sent(b"del", b"k", settings=by_type).key == b"db0:unknown:k"
    assert sent(b"flushdb", settings=by_type).key == b"db0:unknown"


@pytest.mark.parametrize("key", [b"\xff\xfe", b"\x00", b'"', b"\\", b"\r\n", "ключ".encode(), b"\xed\xa0\x80", b""])
def test_defect_4_binary_keys_are_valid_json_and_can_be_had_back(key: bytes) -> None:
    event = sent(b"SET", key, b"v")
    value = json.loads(event.value.decode("utf-8"))
    assert decoded(value["key"], value["key_encoding"]) == key
    assert event.key == b"db0:" + key


@pytest.mark.parametrize("time", [b"0", b"5", b"1700000500", b"1794770985929"])
@pytest.mark.parametrize("form", Pksetexat)
def test_defect_5_an_expiry_is_never_negative_nor_far_off(time: bytes, form: Pksetexat) -> None:
    value = fields(b"pksetexat", b"k", time, b"v", settings=EventSettings("db0", "s", pksetexat=form))
    command = parse_command(decoded(value["raw_resp"], "base64"))
    if time == b"0":
        assert command == [b"SET", b"k", b"v"]
    elif form is Pksetexat.SET:
        assert command == [b"SET", b"k", b"v", b"PXAT" if len(time) > 12 else b"EXAT", time]
    else:
        assert command[0] == b"setex"
        assert 1 <= int(command[2]) <= 95_000_000


def test_defect_5_an_event_does_not_depend_on_when_it_is_built() -> None:
    seed = EventSettings("db0", "s", pksetexat=Pksetexat.SETEX)
    value = fields(b"pksetexat", b"k", b"1700000500", b"v", settings=seed)
    assert value["op"] == "pksetexat"
    assert [decoded(arg, "base64") for arg in value["args"]] == [b"pksetexat", b"k", b"1700000500", b"v"]
    assert parse_command(decoded(value["raw_resp"], "base64"))[2] == b"500"  # from the second it was executed in


def test_a_zero_of_a_3_5_master_is_translated_to_keep_the_expiry() -> None:
    value = fields(b"pksetexat", b"k", b"0", b"v", settings=EventSettings("db0", "s", zero_expiry=ZeroExpiry.KEEP))
    assert parse_command(decoded(value["raw_resp"], "base64")) == [b"SET", b"k", b"v", b"KEEPTTL"]


def test_a_pksetexat_that_cannot_be_translated_is_sent_as_it_is() -> None:
    value = fields(b"pksetexat", b"k", b"soon", b"v")
    assert value["op"] == "pksetexat"
    assert parse_command(decoded(value["raw_resp"], "base64")) == [b"pksetexat", b"k", b"soon", b"v"]


def test_defect_9_every_batch_of_a_snapshots_key_has_its_own_event_id() -> None:
    commands = [
        Snapshot(data_type, key, (b"SET", key), batch)
        for data_type in ("list", "set")
        for key in (b"a", b"a:1", b"\xff", b"/w==", b"list:a")
        for batch in (0, 1, 10)
    ]
    events = [snapshot_of(command) for command in commands]
    ids = [json.loads(event.value)["event_id"] for event in events if event]
    assert len(set(ids)) == len(commands)


def test_binlog_positions_are_unique_where_header_positions_are_not() -> None:
    builder = EventBuilder(DEFAULTS)
    first, second = builder.binlog_event(Position(1, 0), payload(b"del", b"k")), builder.binlog_event(
        Position(1, 1074), payload(b"del", b"k")
    )  # fmt: skip
    assert first is not None
    assert second is not None
    one, other = json.loads(first.value), json.loads(second.value)
    assert one["event_id"] == other["event_id"]
    assert (one["position"], other["position"]) == ("dfe36f/db0/1/0", "dfe36f/db0/1/1074")


# What is sent, and where


@pytest.mark.parametrize(
    "args",
    [
        (b"padding", b"***"),
        (b"PADDING", b"***"),
        (b"SADD", b"_internal:slotkey:4migrate:12", b"m"),
        (b"del", b"_internal:slottag:4migrate:12"),
        (b"del", b"_internal:slottag:4migrate:12", b"_internal:slotkey:4migrate:12"),
    ],
)
def test_items_that_stand_for_nothing_are_skipped(args: tuple[bytes, ...]) -> None:
    assert event_of(*args) is None


def test_keys_that_only_look_like_the_masters_own_are_sent() -> None:
    assert event_of(b"SET", b"_internal:other", b"v") is not None
    assert snapshot_of(Snapshot("set", b"_internal:slotkey:4migrate:1", (b"SADD", b"x"))) is None


def test_flushdb_goes_to_every_partition_and_has_no_key() -> None:
    event = sent(b"flushdb")
    value = json.loads(event.value)
    assert (event.key, event.broadcast) == (b"db0", True)
    assert (value["key"], value["op"], value["data_type"], value["effect"]) == ("", "flushdb", "unknown", "idempotent")


def test_a_command_with_several_keys_goes_to_every_partition() -> None:
    assert sent(b"RENAME", b"a", b"b")[::2] == (b"db0:a", True)
    assert sent(b"DEL", b"a", b"b")[::2] == (b"db0:a", True)
    assert sent(b"DEL", b"a")[::2] == (b"db0:a", False)


def test_the_empty_key_is_a_key() -> None:
    assert sent(b"SET", b"", b"v")[::2] == (b"db0:", False)


def test_a_command_with_several_keys_is_sent_when_one_of_them_passes() -> None:
    chosen = Filter.parse(["key=b"])
    assert event_of(b"RENAME", b"a", b"b", chosen=chosen) is not None
    assert event_of(b"RENAME", b"a", b"c", chosen=chosen) is None


def test_filters_see_the_type_and_the_name_of_the_event() -> None:
    strings, lists = Filter.parse(["type=string"]), Filter.parse(["type=list"])
    pksetexat = (b"pksetexat", b"k", b"0", b"v")
    assert event_of(*pksetexat, chosen=strings) is not None
    assert event_of(*pksetexat, chosen=lists) is None
    assert event_of(b"DEL", b"k", chosen=lists) is not None
    assert event_of(*pksetexat, chosen=Filter.parse(["action=set"])) is not None
    assert event_of(*pksetexat, chosen=Filter.parse(["action=pksetexat"])) is not None
    assert event_of(b"SET", b"k", b"v", chosen=Filter.parse(["action=pksetexat"])) is None
    assert event_of(b"SET", b"k", b"v", chosen=Filter.parse([], ["k"])) is None


def test_a_snapshot_is_filtered_by_the_type_of_its_key_whatever_the_command() -> None:
    expiry = Snapshot("list", b"k", (b"PEXPIREAT", b"k", b"5"), 3)
    assert snapshot_of(expiry, chosen=Filter.parse(["type=list"])) is not None
    assert snapshot_of(expiry, chosen=Filter.parse(["type=hash"])) is None
    event = snapshot_of(expiry)
    assert event is not None
    assert json.loads(event.value)["data_type"] == "list"


def test_an_item_that_makes_no_sense_is_an_error_that_names_its_position() -> None:
    builder = EventBuilder(EventSettings("db0", "s", limits=RespLimits(arguments_max=2)))
    with pytest.raises(RespError, match="db0, item that ends at 12:34610: a command of 3 arguments"):
        builder.binlog_event(END, payload(b"SET", b"k", b"v"))
    with pytest.raises(ProtocolError, match="shorter than its header"):
        builder.binlog_event(END, b"\x01\x00")
    with pytest.raises(ProtocolError, match="type 2"):
        builder.binlog_event(END, b"\x02" + payload(b"DEL", b"k")[1:])
    with pytest.raises(ProtocolError, match="bytes of content"):
        builder.binlog_event(END, payload(b"DEL", b"k") + b"x")


def test_names_without_end_are_not_remembered_without_end() -> None:
    builder = EventBuilder(DEFAULTS, Filter.parse(["key=*"]))
    for number in range(5000):
        event = builder.binlog_event(END, payload(b"name%d" % number, b"k"))
        assert event is not None
        assert json.loads(event.value)["op"] == f"name{number}"
    assert len(builder._names) <= 1024
    assert len(builder._binlog_names) <= 1024


def test_a_builder_can_be_sent_to_another_process() -> None:
    builder = EventBuilder(DEFAULTS, Filter.parse(["key=^k$;type=string"], ["x*"]))
    builder.binlog_event(END, payload(b"SET", b"k", b"v"))
    sent_away: EventBuilder = pickle.loads(pickle.dumps(builder))
    for args in ((b"SET", b"k", b"v"), (b"SET", b"x", b"v"), (b"pksetexat", b"k", b"5", b"v")):
        assert sent_away.binlog_event(END, payload(*args)) == builder.binlog_event(END, payload(*args))


usual = st.sampled_from([b"SET", b"hset", b"DEL", b"pksetexat", b"flushdb", b"zadd", b"xadd", b"RENAME"])
names = usual | st.binary(max_size=6)
anything = st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace"))
encodings = st.sampled_from(Encoding)
all_settings = st.builds(
    EventSettings,
    db=st.just("db0"),
    source_id=st.text(max_size=6),
    replication_id=st.text('a/%\\"', max_size=4),
    args_encoding=encodings,
    raw_resp_encoding=encodings,
    include_raw_resp=st.booleans(),
    partition_by=st.sampled_from(PartitionBy),
    zero_expiry=st.sampled_from(ZeroExpiry),
)


@given(all_settings, names, st.lists(anything, max_size=5))
def test_an_event_is_always_json_from_which_the_command_can_be_had_back(
    settings: EventSettings, name: bytes, rest: list[bytes]
) -> None:
    args = [name, *rest]
    event = event_of(*args, settings=settings)
    if event is None:
        assert name.lower() == b"padding"
        return
    value = json.loads(event.value.decode("utf-8"))
    said = [decoded(arg, value["args_encoding"]) for arg in value["args"]]
    if said != args:
        assert name.lower() == b"pksetexat"
        assert said[:3] == [b"SET", args[1], args[3]]
    if settings.include_raw_resp:
        assert parse_command(decoded(value["raw_resp"], value["raw_resp_encoding"])) == said
    if not event.broadcast:
        assert event.key.endswith(b":" + decoded(value["key"], value["key_encoding"]))
    assert value["source_id"] == settings.source_id


@given(anything, st.lists(anything, max_size=4), st.integers(0, 2**40), all_settings)
def test_a_snapshot_event_is_always_json_from_which_the_command_can_be_had_back(
    key: bytes, rest: list[bytes], batch: int, settings: EventSettings
) -> None:
    args = (b"RPUSH", key, *rest)
    event = snapshot_of(Snapshot("list", key, args, batch), settings)
    assert event is not None
    value = json.loads(event.value.decode("utf-8"))
    assert tuple(decoded(arg, value["args_encoding"]) for arg in value["args"]) == args
    assert decoded(value["key"], value["key_encoding"]) == key
    assert value["event_id"].endswith(f":{batch}")
