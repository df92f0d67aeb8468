"""Our reader of RocksDB's files gives what RocksDB gives, and refuses what is damaged or unknown.

RocksDB itself (rocksdict) writes databases of every kind and is the second reader. For the one comparator that it
cannot open, aimrocks is asked when it is installed.
"""

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import crc32c
import pytest
from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    ChecksumType,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    Rdict,
    SliceTransform,
    WriteBatch,
)

from tests.pikiwi.dump_keys import FIXTURES
from tests.pikiwi.dump_writer import FLOYD_LISTS, FloydWriter, add_table, append_record, varint, write_table
from tidelog.pikiwi.dump.open import Database
from tidelog.pikiwi.dump.rocks import BYTEWISE, ORDERS, ColumnFamilyRows, read_manifest
from tidelog.pikiwi.dump.rocks.batches import read_logs
from tidelog.pikiwi.dump.rocks.coding import Malformed
from tidelog.pikiwi.dump.rocks.records import mask, read_records
from tidelog.pikiwi.dump.rocks.table import Table, entries
from tidelog.pikiwi.errors import DumpError

FAMILY = "other"


def made(change: Callable[[Options, BlockBasedOptions], None] | None = None) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    table = BlockBasedOptions()
    table.set_format_version(5)
    if change is not None:
        change(options, table)
    options.set_block_based_table_factory(table)
    return options


def fill(folder: Path, options: Options, seed: int = 1, *, flush_last: bool = True) -> None:
    """Puts, overwrites, deletes and range deletes over several flushes, in two families."""
    chance = random.Random(seed)
    live = folder / "live"
    database = Rdict(str(live), options, column_families={"default": options, FAMILY: options})
    for family in (database, database.get_column_family(FAMILY)):
        for turn in range(4):
            for _ in range(400):
                key = b"key:%05d" % chance.randrange(700)
                if chance.random() < 0.25:
                    family.delete(key)
                else:
                    family.put(key, chance.randbytes(chance.choice((0, 3, 40, 300))))
            if chance.random() < 0.5:
                begin = chance.randrange(600)
                family.delete_range(b"key:%05d" % begin, b"key:%05d" % (begin + 50))
            if turn < 3 or flush_last:
                family.flush()
            if turn == 1:
                family.compact_range(None, None)
    copy_live(database, folder)
    database.close()


@pytest.fixture(scope="module")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    fill(folder, made())
    shutil.rmtree(folder / "live")
    return folder


@pytest.fixture
def filled(filled_once: Path, tmp_path: Path) -> None:
    """A database in `tmp_path`, to be changed as a test likes."""
    shutil.copytree(filled_once, tmp_path, dirs_exist_ok=True)


def copy_live(database: Rdict, folder: Path) -> None:
    """As it lies there now: closing would flush what is in the log only."""
    database.flush_wal(True)
    for path in Path(database.path()).iterdir():
        shutil.copy(path, folder)


def by_rocksdb(folder: Path, family: str) -> list[tuple[bytes, bytes]]:
    plain = Options(raw_mode=True)
    database = Rdict(
        str(folder), plain, column_families={"default": plain, FAMILY: plain}, access_type=AccessType.read_only()
    )
    rows = database.iter() if family == "default" else database.get_column_family(family).iter()
    rows.seek_to_first()
    found: list[tuple[bytes, bytes]] = []
    while rows.valid():
        found.append((rows.key(), rows.value()))
        rows.next()
    rows.status()
    return found


def by_us(
    folder: Path, family: str, lower: bytes | None = None, upper: bytes | None = None
) -> list[tuple[bytes, bytes]]:
    rows = ColumnFamilyRows(folder, read_manifest(folder)[family])
    try:
        return list(rows.scan(lower, upper))
    finally:
        rows.close()


KINDS: dict[str, Callable[[Options, BlockBasedOptions], None]] = {
    "no compression": lambda options, _: options.set_compression_type(DBCompressionType.none()),
    "snappy": lambda options, _: options.set_compression_type(DBCompressionType.snappy()),
    "zlib": lambda options, _: options.set_compression_type(DBCompressionType.zlib()),
    "lz4": lambda options, _: options.set_compression_type(DBCompressionType.lz4()),
    "lz4hc": lambda options, _: options.set_compression_type(DBCompressionType.lz4hc()),
    "zstd": lambda options, _: options.set_compression_type(DBCompressionType.zstd()),
    "crc32c": lambda _, table: table.set_checksum_type(ChecksumType.crc32c()),
    "xxhash": lambda _, table: table.set_checksum_type(ChecksumType.xxhash()),
    "xxhash64": lambda _, table: table.set_checksum_type(ChecksumType.xxhash64()),
    "xxh3": lambda _, table: table.set_checksum_type(ChecksumType.xxh3()),
    "format 2": lambda _, table: table.set_format_version(2),
    "format 3": lambda _, table: table.set_format_version(3),
    "format 4": lambda _, table: table.set_format_version(4),
    "format 6": lambda _, table: table.set_format_version(6),
    "restart points": lambda _, table: table.set_block_restart_interval(3),
    "index restart points": lambda _, table: table.set_index_block_restart_interval(4),
    "hash index in blocks": lambda _, table: table.set_data_block_index_type(DataBlockIndexType.binary_and_hash()),
}


def two_level(_: Options, table: BlockBasedOptions) -> None:
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_metadata_block_size(200)
    table.set_block_size(256)


def hash_index(options: Options, table: BlockBasedOptions) -> None:
    options.set_prefix_extractor(SliceTransform.create_fixed_prefix(5))
    table.set_index_type(BlockBasedIndexType.hash_search())


KINDS["two-level index"] = two_level
KINDS["hash index"] = hash_index


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_of_table_are_those_that_rocksdb_gives(kind: str, tmp_path: Path) -> None:
    fill(tmp_path, made(KINDS[kind]))
    for family in ("default", FAMILY):
        assert by_us(tmp_path, family) == by_rocksdb(tmp_path, family)


@pytest.mark.parametrize("seed", range(6))
def test_levels_logs_deletions_and_range_tombstones_are_merged_as_rocksdb_does(seed: int, tmp_path: Path) -> None:
    fill(tmp_path, made(), seed, flush_last=False)
    assert any(path.stat().st_size for path in tmp_path.glob("*.log"))
    for family in ("default", FAMILY):
        wanted = by_rocksdb(tmp_path, family)
        assert by_us(tmp_path, family) == wanted
        with Database(tmp_path) as database:
            assert list(database.scan(family)) == wanted
        for lower, upper in [
            (wanted[-1][0], None),
            (b"key:00100", b"key:00300"),
            (None, b"key:00001"),
            (b"key:00650", None),
            (b"z", None),
        ]:
            inside = [row for row in wanted if (lower is None or row[0] >= lower) and (upper is None or row[0] < upper)]
            assert by_us(tmp_path, family, lower, upper) == inside


def test_writes_of_one_batch_count_in_their_order(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "live"), made())
    batch = WriteBatch(raw_mode=True)
    for key, value in [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]:
        batch.put(key, value)
    batch.delete(b"b")
    batch.delete(b"c")
    batch.put(b"c", b"3")
    database.write(batch)
    copy_live(database, tmp_path)
    database.close()
    assert by_us(tmp_path, "default") == [(b"a", b"2"), (b"c", b"3")]


def test_a_log_that_a_family_has_in_its_tables_does_not_bring_deleted_rows_back(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "live"), made(), column_families={"default": made(), FAMILY: made()})
    family = database.get_column_family(FAMILY)
    database.put(b"unflushed", b"so that the first log stays")
    family.put(b"deleted", b"value")
    family.put(b"kept", b"value")
    family.flush()
    family.delete(b"deleted")
    family.flush()
    family.compact_range(None, None)
    copy_live(database, tmp_path)
    database.close()
    assert any(b"deleted" in path.read_bytes() for path in tmp_path.glob("*.log"))
    assert by_us(tmp_path, FAMILY) == [(b"kept", b"value")]
    assert list(read_logs(tmp_path, read_manifest(tmp_path)[FAMILY])) == [], "they need not even be held in memory"
    assert by_us(tmp_path, "default") == [(b"unflushed", b"so that the first log stays")]


def test_a_torn_log_counts_up_to_its_last_whole_record(tmp_path: Path) -> None:
    fill(tmp_path, made(), flush_last=False)
    log = max(tmp_path.glob("*.log"))
    log.write_bytes(log.read_bytes()[:-5])
    assert by_us(tmp_path, FAMILY) == by_rocksdb(tmp_path, FAMILY)


def test_a_log_that_is_damaged_before_its_end_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, made(), flush_last=False)
    log = max(tmp_path.glob("*.log"))
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    with pytest.raises(DumpError, match=rf"{log.name}.*checksum"):
        by_us(tmp_path, FAMILY)


@pytest.mark.parametrize("version", [5, 6])
def test_no_single_damaged_byte_of_a_table_goes_unnoticed_or_changes_a_row(version: int, tmp_path: Path) -> None:
    fill(tmp_path, made(lambda _, table: table.set_format_version(version)))
    wanted = by_us(tmp_path, "default")
    file = next(iter(read_manifest(tmp_path)["default"].files.values()))
    whole = file.path.read_bytes()
    chance = random.Random(7)
    noticed = 0
    for at in [*chance.sample(range(len(whole)), 60), *range(len(whole) - 53, len(whole))]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        file.path.write_bytes(damaged)
        try:
            assert by_us(tmp_path, "default") == wanted, f"byte {at} changed rows silently"
        except DumpError as error:
            noticed += file.path.name in str(error)
    assert noticed > 60  # the rest are padding and properties that say nothing about rows


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("keep", [0, 10, 52, 0.5])
def test_a_table_that_is_cut_short_is_an_error(keep: float, tmp_path: Path) -> None:
    file = next(iter(read_manifest(tmp_path)["default"].files.values()))
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[: int(keep if keep >= 1 else keep * len(whole))])
    with pytest.raises(DumpError, match=file.path.name):
        by_us(tmp_path, "default")


@pytest.mark.usefixtures("filled")
def test_a_table_that_is_missing_is_an_error(tmp_path: Path) -> None:
    file = next(iter(read_manifest(tmp_path)["default"].files.values()))
    file.path.unlink()
    with pytest.raises(DumpError, match=f"{file.path.name} is missing"):
        by_us(tmp_path, "default")


@pytest.mark.parametrize("version", [0, 1, 7, 99])
def test_an_unknown_format_version_is_an_error_that_names_the_file(version: int, tmp_path: Path) -> None:
    path = tmp_path / "000001.sst"
    path.write_bytes(write_table(BYTEWISE, [(b"k" + struct.pack("<Q", 257), b"v")], version=version))
    with pytest.raises(DumpError, match=f"000001.sst: table format_version {version}"):
        Table(path, BYTEWISE)


@pytest.mark.usefixtures("filled")
def test_a_format_that_only_rocksdb_knows_can_still_be_cut_into_ranges(tmp_path: Path) -> None:
    family = read_manifest(tmp_path)["default"]
    for file in family.files.values():
        content = file.path.read_bytes()
        file.path.write_bytes(content[:-12] + struct.pack("<I", 99) + content[-8:])
    boundaries = list(ColumnFamilyRows(tmp_path, family).boundaries(1))
    assert boundaries == [(file.largest, file.size) for file in family.files.values()]
    with pytest.raises(DumpError, match="format_version 99"):
        by_us(tmp_path, "default")


def test_a_table_sorted_by_another_comparator_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "000001.sst"
    path.write_bytes(write_table(FLOYD_LISTS, [(b"k" + struct.pack("<Q", 257), b"v")]))
    with pytest.raises(DumpError, match="sorted by floyd"):
        Table(path, BYTEWISE)


def test_rows_that_are_not_in_the_comparators_order_are_an_error(tmp_path: Path) -> None:
    Rdict(str(tmp_path), made()).close()
    rows = [(FloydWriter.data_row(b"l", struct.pack("<Q", index)), b"v") for index in (1, 256, 2)]
    table = write_table(FLOYD_LISTS, [(row + struct.pack("<Q", 257), value) for row, value in rows])
    add_table(tmp_path, FAMILY, FLOYD_LISTS, rows)
    (file,) = read_manifest(tmp_path)[FAMILY].files.values()
    file.path.write_bytes(table)
    with pytest.raises(DumpError, match="not in the order of floyd"):
        by_us(tmp_path, FAMILY)


def test_a_comparator_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    Rdict(str(tmp_path), made(), column_families={"default": made(), FAMILY: made()}).close()
    identity = read_manifest(tmp_path)[FAMILY].identity
    name = b"somebody.Else"
    edit = varint(200) + varint(identity) + varint(1) + varint(len(name)) + name
    append_record(tmp_path / (tmp_path / "CURRENT").read_text().strip(), edit)
    with pytest.raises(DumpError, match=r"other is sorted by somebody\.Else"):
        by_us(tmp_path, FAMILY)


@pytest.mark.usefixtures("filled")
def test_an_edit_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    append_record(tmp_path / (tmp_path / "CURRENT").read_text().strip(), varint(77) + varint(1))
    with pytest.raises(DumpError, match=r"MANIFEST.*kind 77"):
        read_manifest(tmp_path)


@pytest.mark.usefixtures("filled")
def test_an_edit_that_may_be_skipped_is_skipped(tmp_path: Path) -> None:
    before = read_manifest(tmp_path)
    append_record(tmp_path / (tmp_path / "CURRENT").read_text().strip(), varint(1 << 13 | 99) + b"\3abc")
    assert read_manifest(tmp_path) == before


@pytest.mark.usefixtures("filled")
def test_an_atomic_group_that_is_not_whole_does_not_count(tmp_path: Path) -> None:
    manifest = tmp_path / (tmp_path / "CURRENT").read_text().strip()
    before = read_manifest(tmp_path)
    (level, number), *_ = before["default"].files
    delete = varint(6) + varint(level) + varint(number)
    append_record(manifest, delete + varint(300) + varint(1))
    assert read_manifest(tmp_path) == before
    append_record(manifest, varint(300) + varint(0))
    assert (level, number) not in read_manifest(tmp_path)["default"].files


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_manifest_that_ends_inside_a_record_is_an_error(cut: int, tmp_path: Path) -> None:
    manifest = tmp_path / (tmp_path / "CURRENT").read_text().strip()
    manifest.write_bytes(manifest.read_bytes()[:-cut])
    with pytest.raises(DumpError, match="ends inside a record"):
        read_manifest(tmp_path)


def recycled(number: int, content: bytes) -> bytes:
    body = bytes((5,)) + struct.pack("<I", number) + content
    return struct.pack("<IH", mask(crc32c.crc32c(body)), len(content)) + body


def test_a_recycled_log_ends_where_the_one_before_it_shows(tmp_path: Path) -> None:
    log = tmp_path / "000007.log"
    log.write_bytes(recycled(7, b"new") + recycled(7, b"newer") + recycled(3, b"old"))
    assert list(read_records(log, log_number=7)) == [b"new", b"newer"]


def test_a_record_of_an_unknown_kind_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "000007.log"
    log.write_bytes(struct.pack("<IHB", 0, 1, 9) + b"x")
    with pytest.raises(DumpError, match=r"000007\.log.*kind 9"):
        list(read_records(log, log_number=7))


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("content", ["", "MANIFEST-x\n", "../MANIFEST-000001\n", "MANIFEST-999999\n"])
def test_a_current_that_names_no_manifest_is_an_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "CURRENT").write_text(content)
    with pytest.raises(DumpError, match=r"CURRENT|MANIFEST"):
        read_manifest(tmp_path)


def test_records_over_many_blocks_come_back_whole(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "live"), made())
    database.put(b"long", bytes(range(256)) * 1000)
    copy_live(database, tmp_path)
    database.close()
    records = [record for log in tmp_path.glob("*.log") for record in read_records(log, log_number=int(log.stem))]
    assert any(bytes(range(256)) * 1000 in record for record in records)
    assert dict(by_us(tmp_path, "default"))[b"long"] == bytes(range(256)) * 1000


@pytest.mark.parametrize("block", [b"", b"\0\0\0", b"\xff\xff\xff\x7f", b"\5\5\5abc" + b"\0\0\0\0\1\0\0\0"])
def test_a_malformed_block_is_an_error(block: bytes) -> None:
    with pytest.raises(Malformed):
        entries(block)


@pytest.mark.parametrize("comparator", [name for name in ORDERS if name != BYTEWISE])
def test_sort_keys_order_lists_by_key_version_and_index(comparator: str) -> None:
    chance = random.Random(3)
    places = [
        (key, version, chance.choice((2**63, 2**63 - 1, 255, 256, chance.randrange(2**64))))
        for key in (b"", b"a", b"a\0", b"a\0b", b"ab", b"\xff", b"a" * 300)
        for version in (1, 255, 256, 2**31 - 1)
    ]

    def row(key: bytes, version: int, index: int) -> bytes:
        if comparator == FLOYD_LISTS:
            return FloydWriter.data_row(key, struct.pack("<Q", index), version)
        return struct.pack("<I", len(key)) + key + struct.pack("<iQ", version, index)

    order = ORDERS[comparator]
    assert [row(*place) for place in sorted(places)] == sorted((row(*place) for place in places), key=order)
    for key, version, index in places:  # what all rows of a key begin with sorts before them, and behind smaller keys
        whole = row(key, version, index)
        prefix = whole[: whole.index(b"\0\0", 8) + 2] if comparator == FLOYD_LISTS else whole[: 4 + len(key)]
        assert order(prefix) < order(whole)
        assert all(order(row(*other)) < order(prefix) for other in places if other[0] < key)


@pytest.mark.usefixtures("filled")
def test_a_damaged_block_ends_a_scan_by_rocksdb_with_an_error_too(tmp_path: Path) -> None:
    file = max(read_manifest(tmp_path)["default"].files.values(), key=lambda file: file.size)
    damaged = bytearray(file.path.read_bytes())
    damaged[len(damaged) // 4] ^= 0x55
    file.path.write_bytes(damaged)
    with Database(tmp_path) as database, pytest.raises(DumpError, match=rf"{file.path.name}") as caught:
        list(database.scan("default"))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.usefixtures("filled")
def test_a_missing_table_ends_an_open_by_rocksdb_with_an_error(tmp_path: Path) -> None:
    for file in read_manifest(tmp_path)["default"].files.values():
        file.path.unlink()
    with pytest.raises(DumpError, match=str(tmp_path)), Database(tmp_path) as database:
        list(database.scan("default"))


@pytest.mark.parametrize(
    ("database", "family"),
    [
        ("dump-4.0.1/0", "list_data_cf"),
        ("dump-4.0.1/1", "list_data_cf"),
        ("dump-3.5.5/lists", "data_cf"),
        ("made", "list_data_cf"),
    ],
)
def test_lists_are_read_as_a_rocksdb_with_the_comparator_reads_them(database: str, family: str, tmp_path: Path) -> None:
    aimrocks = pytest.importorskip("aimrocks", reason="the second reader of lists, aimrocks, is not installed")
    if database == "made":
        writer = FloydWriter(tmp_path)
        for count in (1, 255, 256, 1000):
            writer.list(b"list\0%d" % count, [b"%d" % value for value in range(count)])
        writer.close()
        folder = tmp_path / "0"
    else:
        folder = tmp_path / "copy"
        shutil.copytree(FIXTURES / database, folder)
    found = read_manifest(folder)

    class Comparator(aimrocks.IComparator):
        def __init__(self, name: str) -> None:
            self._name = name.encode()
            self._order = ORDERS.get(name, ORDERS[BYTEWISE])

        def compare(self, a: bytes, b: bytes) -> int:
            left, right = self._order(a), self._order(b)
            return (left > right) - (left < right)

        def name(self) -> bytes:
            return self._name

    options = {
        name.encode(): aimrocks.ColumnFamilyOptions(comparator=Comparator(each.comparator))
        if each.comparator != BYTEWISE
        else aimrocks.ColumnFamilyOptions()
        for name, each in found.items()
    }
    oracle = aimrocks.DB(str(folder), aimrocks.Options(), column_families=options, read_only=True)
    rows = oracle.iteritems(oracle.get_column_family(family.encode()))
    rows.seek_to_first()
    assert by_us(folder, family) == [(key[1] if isinstance(key, tuple) else key, value) for key, value in rows]
