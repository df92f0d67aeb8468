"""Names and bytes, against the format's own description and against protobuf's runtime."""

import contextlib
import struct
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from tidelog.regionwal import SequenceMap, TableMeta, formats
from tidelog.regionwal.formats import FormatError, Part, VersionError
from tidelog.regionwal.snapshot_format import Snapshot

U64 = st.integers(0, 2**64 - 1)
INT64 = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
UINT64 = descriptor_pb2.FieldDescriptorProto.TYPE_UINT64
MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
OPTIONAL = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


@pytest.fixture(scope="module")
def horaedb() -> Any:
    """HoraeDB's RegionMetaSnapshot, as its wal_on_mq.proto has it, for protobuf's own runtime."""
    file = descriptor_pb2.FileDescriptorProto(name="wal_on_mq.proto", package="wal_on_mq", syntax="proto3")
    table = file.message_type.add(name="TableMetaData")
    table.oneof_decl.add(name="safe_delete_offset")
    for number, (name, kind) in enumerate(
        [
            ("table_id", UINT64),
            ("next_sequence_num", UINT64),
            ("latest_marked_deleted", UINT64),
            ("current_high_watermark", INT64),
            ("offset", INT64),
        ],
        start=1,
    ):
        field = table.field.add(name=name, number=number, type=kind, label=OPTIONAL)
        if name == "offset":
            field.oneof_index = 0
    region = file.message_type.add(name="RegionMetaSnapshot")
    region.field.add(name="entries", number=2, type=MESSAGE, label=REPEATED, type_name=".wal_on_mq.TableMetaData")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("wal_on_mq.RegionMetaSnapshot"))


# --- names, keys, values, headers ------------------------------------------------------------------------------------


def test_topics_are_named_as_horaedb_names_them() -> None:
    assert formats.data_topic("wal", 7) == "wal_data_7"
    assert formats.meta_topic("manifest", 12) == "manifest_meta_12"


@pytest.mark.parametrize(
    ("topic", "region"),
    [
        ("wal_data_7", 7),
        ("wal_data_0", 0),
        ("wal_meta_7", None),
        ("other_data_7", None),
        ("wal_data_", None),
        ("wal_data_07", None),
        ("wal_data_x", None),
        ("wal_data_²", None),
    ],
)
def test_region_is_known_from_its_topic(topic: str, region: int | None) -> None:
    assert formats.region_of_topic("wal", topic) == region


def test_data_key_is_26_bytes_with_the_version_last() -> None:
    key = formats.data_key(region=2, table=3, sequence=4)

    assert key == bytes.fromhex("01 0000000000000002 0000000000000003 0000000000000004 00".replace(" ", ""))
    assert len(key) == 26


def test_meta_key_is_namespace_then_version_then_region() -> None:
    assert formats.meta_key(2) == bytes.fromhex("00 00 0000000000000002".replace(" ", ""))


@given(U64, U64, U64)
def test_data_key_comes_back(region: int, table: int, sequence: int) -> None:
    assert formats.parse_data_key(formats.data_key(region, table, sequence), region) == (table, sequence)


@pytest.mark.parametrize(
    ("key", "error", "match"),
    [
        (None, FormatError, "no bytes"),
        (b"", FormatError, "0 bytes"),
        (struct.pack(">BQQQB", 1, 7, 1, 1, 1), VersionError, "version 1"),
        (struct.pack(">BQQQB", 0, 7, 1, 1, 0), FormatError, "namespace 0"),
        (struct.pack(">BQQQB", 1, 8, 1, 1, 0), FormatError, "region 8"),
        (struct.pack(">BQQQ", 1, 7, 1, 1), FormatError, "25 bytes"),
    ],
)
def test_data_key_that_makes_no_sense_is_refused(key: bytes | None, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        formats.parse_data_key(key, 7)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (None, FormatError),
        (b"short", FormatError),
        (struct.pack(">BBQ", 0, 1, 7), VersionError),
        (struct.pack(">BBQ", 1, 0, 7), FormatError),
        (struct.pack(">BBQ", 0, 0, 8), FormatError),
    ],
)
def test_meta_key_that_makes_no_sense_is_refused(key: bytes | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        formats.check_meta_key(key, 7)


def test_value_is_a_version_byte_and_the_payload() -> None:
    ((key, value, headers),) = formats.records_of(b"key", b"payload", 100, [formats.epoch_header(1)])

    assert (key, value) == (b"key", b"\0payload")
    assert formats.payload_of(value) == b"payload"
    assert formats.parse_headers(headers) == (1, formats.WHOLE)


@pytest.mark.parametrize("value", [None, b""])
def test_value_without_a_version_byte_is_refused(value: bytes | None) -> None:
    with pytest.raises(FormatError, match="not even a version byte"):
        formats.payload_of(value)


def test_value_of_another_version_is_refused() -> None:
    with pytest.raises(VersionError, match="version 1"):
        formats.payload_of(b"\1payload")


@given(st.binary(max_size=50), st.integers(1, 20))
def test_split_payload_comes_back_from_its_parts(payload: bytes, bytes_max: int) -> None:
    records = formats.records_of(b"key", payload, bytes_max, [formats.epoch_header(5)])

    assert b"".join(formats.payload_of(value) for _, value, _ in records) == payload
    assert all(len(value) <= bytes_max + 1 for _, value, _ in records)
    parsed = [formats.parse_headers(headers) for _, _, headers in records]
    assert {epoch for epoch, _ in parsed} == {5}
    assert [part.number for _, part in parsed] == list(range(len(records)))
    assert {part.parts for _, part in parsed} == {len(records)}
    assert len({part.tag for _, part in parsed}) == 1


def test_record_of_other_software_is_of_epoch_zero() -> None:
    assert formats.parse_headers(None) == (0, formats.WHOLE)
    assert formats.parse_headers([("trace", b"x")]) == (0, formats.WHOLE)


@pytest.mark.parametrize(
    "header", [("e", b"short"), ("e", None), ("p", b"short"), formats.part_header(Part(3, 3, 0))], ids=str
)
def test_header_that_makes_no_sense_is_refused(header: Any) -> None:
    with pytest.raises(FormatError):
        formats.parse_headers([header])


# --- snapshots -------------------------------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> TableMeta:
    marked = draw(st.integers(1, 2**40))
    table = TableMeta(marked, marked, 0, SequenceMap())
    offset = draw(st.integers(0, 2**40))
    batches = st.lists(st.tuples(st.integers(0, 2**33), st.integers(1, 300), st.integers(1, 3)), max_size=6)
    for gap, count, width in draw(batches):
        offset += gap
        table.seq_offset_mapping.append(table.next_seq_num, offset, count, width, width)
        table.next_seq_num += count
        offset += count * width
    table.current_high_watermark = offset
    return table


snapshots = st.builds(
    Snapshot,
    serial=U64,
    data_epoch=U64,
    data_high_watermark=st.integers(0, 2**63 - 1),
    tables=st.dictionaries(st.integers(0, formats.TABLE_MAX), tables(), max_size=4),
    total_bytes=U64,
    byte_marks=st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)), max_size=4).map(
        lambda marks: tuple(zip(sorted(a for a, _ in marks), sorted(b for _, b in marks), strict=True))
    ),
)


@given(snapshots)
def test_snapshot_comes_back(snapshot: Snapshot) -> None:
    assert Snapshot.decode(snapshot.encode()) == snapshot


@given(snapshots)
def test_horaedb_reads_our_snapshot_and_skips_what_is_ours_alone(horaedb: Any, snapshot: Snapshot) -> None:
    read = horaedb.FromString(snapshot.encode())

    assert [entry.table_id for entry in read.entries] == list(snapshot.tables)
    for entry in read.entries:
        table = snapshot.tables[entry.table_id]
        assert entry.next_sequence_num == table.next_seq_num
        assert entry.latest_marked_deleted == table.latest_marked_deleted
        assert entry.current_high_watermark == table.current_high_watermark
        assert entry.WhichOneof("safe_delete_offset") == (None if table.safe_delete_offset is None else "offset")
        assert entry.offset == (table.safe_delete_offset or 0)


def test_safe_offset_zero_is_there_and_not_left_out(horaedb: Any) -> None:
    snapshot = Snapshot(tables={1: TableMeta(2, 1, 1, SequenceMap([(1, 0)]))})

    assert horaedb.FromString(snapshot.encode()).entries[0].WhichOneof("safe_delete_offset") == "offset"


def test_specifications_example_comes_back() -> None:
    example = Snapshot(
        data_high_watermark=64, tables={9: TableMeta(5, 2, 32, SequenceMap([(2, 16), (3, 16), (4, 31)]))}
    )

    assert Snapshot.decode(example.encode()) == example


def test_snapshot_of_horaedb_itself_is_refused_because_it_has_no_map(horaedb: Any) -> None:
    theirs = horaedb(entries=[{"table_id": 1, "next_sequence_num": 3, "latest_marked_deleted": 1, "offset": 5}])

    with pytest.raises(FormatError, match=r"other software|ends before"):
        Snapshot.decode(theirs.SerializeToString())
    with pytest.raises(FormatError, match="other software"):
        Snapshot.decode(b"")


def test_fields_that_a_later_version_may_add_are_skipped() -> None:
    snapshot = Snapshot(serial=3, data_high_watermark=9, tables={1: TableMeta(2, 1, 1, SequenceMap([(1, 0)]))})
    added = b"\x98\x7f\x05" + b"\x9a\x7f\x02hi" + b"\x99\x7f" + bytes(8) + b"\x9d\x7f" + bytes(4)

    assert Snapshot.decode(snapshot.encode() + added) == snapshot


@given(snapshots, st.data())
def test_damaged_snapshot_is_refused_or_read_but_never_crashes(snapshot: Snapshot, data: st.DataObject) -> None:
    encoded = bytearray(snapshot.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(encoded), bytes(encoded[: data.draw(st.integers(0, len(encoded)))])):
        with contextlib.suppress(FormatError):
            Snapshot.decode(damaged)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (bytes.fromhex("0801 1003 1801 ca3e 03 020500".replace(" ", "")), "ends within a run"),
        (bytes.fromhex("0801 1003 1801 ca3e 04 00050100".replace(" ", "")), "empty run"),
        (bytes.fromhex("0801 1003 1801 ca3e 04 01050100".replace(" ", "")), "ends before 2"),
        (bytes.fromhex("0801 1003 1801 c83e 05".replace(" ", "")), "number where bytes belong"),
        (bytes.fromhex("0801 1003 1801 ca3e 0d 02 ffffffffffffffffff01 01 00".replace(" ", "")), "beyond"),
        (bytes.fromhex("08 ffffffffffffffffff7f".replace(" ", "")), "64 bits"),
    ],
)
def test_map_that_makes_no_sense_is_refused(table: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        Snapshot.decode(b"\x12" + bytes([len(table)]) + table)


def test_table_that_is_there_twice_is_refused() -> None:
    once = Snapshot(tables={1: TableMeta()}).encode()

    with pytest.raises(FormatError, match="table 1 twice"):
        Snapshot.decode(once + once)
