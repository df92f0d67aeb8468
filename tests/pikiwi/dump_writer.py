"""Writes dumps for tests and benchmarks: RocksDB itself writes all but the lists, which need PikiwiDB's comparator.

`FloydWriter` and `BlackwidowWriter` take keys as a server would store them and lay out a dump folder. Lists are written
by `write_table` and `add_table`: one sorted file and one more edit in the MANIFEST, as RocksDB would have left them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import crc32c
from rocksdict import BlockBasedOptions, ChecksumType, DBCompressionType, Options, Rdict, WriteBatch

from tidelog.pikiwi.dump.rocks import ORDERS
from tidelog.pikiwi.dump.rocks.manifest import read_manifest
from tidelog.pikiwi.dump.rocks.records import BLOCK_BYTES, mask

VERSION = 1_794_770_486_476
LEFT = 2**63 - 1  # a new list's left index
RESERVED = bytes(8)
MILLISECONDS = 1 << 63
FLUSH_ROWS = 5_000

FLOYD_FAMILIES = ("hash_data_cf", "set_data_cf", "list_data_cf", "zset_data_cf", "zset_score_cf", "stream_data_cf")
FLOYD_LISTS = "floyd.ListsDataKeyComparator"
BLACKWIDOW_LISTS = "blackwidow.ListsDataKeyComparator"

Rows = list[tuple[bytes, bytes]]


def options(compression: DBCompressionType | None = None) -> Options:
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.create_missing_column_families(True)
    made.set_compression_type(compression or DBCompressionType.snappy())
    table = BlockBasedOptions()
    table.set_format_version(5)
    table.set_checksum_type(ChecksumType.xxh3())
    made.set_block_based_table_factory(table)
    return made


def escape(key: bytes) -> bytes:
    return key.replace(b"\0", b"\0\1") + b"\0\0"


class FloydWriter:
    """One instance of a 4.x dump. Rows are held until `close`."""

    def __init__(self, folder: Path, instance: int = 0) -> None:
        self.folder = folder / str(instance)
        self.rows: dict[str, Rows] = {name: [] for name in ("default", *FLOYD_FAMILIES)}

    def put(self, family: str, row: bytes, value: bytes) -> None:
        self.rows[family].append((row, value))

    def string(self, key: bytes, value: bytes, expire: int = 0, reserve: bytes = bytes(16)) -> None:
        times = struct.pack("<QQ", VERSION | MILLISECONDS, expire and expire | MILLISECONDS)
        self.put("default", self.meta_row(key), b"\0" + value + reserve + times)

    def meta(self, key: bytes, kind: int, count: int, expire: int = 0, version: int = VERSION) -> None:
        times = struct.pack("<QQ", VERSION | MILLISECONDS, expire and expire | MILLISECONDS)
        self.put("default", self.meta_row(key), struct.pack("<BiQ", kind, count, version) + bytes(16) + times)

    def hash(self, key: bytes, fields: Mapping[bytes, bytes], expire: int = 0, version: int = VERSION) -> None:
        self.meta(key, 1, len(fields), expire, version)
        for field, value in fields.items():
            self.put("hash_data_cf", self.data_row(key, field, version), value + bytes(24))

    def set(self, key: bytes, members: Iterable[bytes], expire: int = 0, version: int = VERSION) -> None:
        members = list(members)
        self.meta(key, 2, len(members), expire, version)
        for member in members:
            self.put("set_data_cf", self.data_row(key, member, version), bytes(24))

    def zset(self, key: bytes, scores: Mapping[bytes, float], expire: int = 0, version: int = VERSION) -> None:
        self.meta(key, 4, len(scores), expire, version)
        for member, score in scores.items():
            self.put("zset_data_cf", self.data_row(key, member, version), struct.pack("<d", score) + bytes(24))

    def list(self, key: bytes, values: Sequence[bytes], expire: int = 0, version: int = VERSION) -> None:
        indexes = struct.pack("<Q", LEFT) + b"junkjunk" + struct.pack("<Q", LEFT + 1 + len(values)) + b"JUNKJUNK"
        times = struct.pack("<QQ", VERSION | MILLISECONDS, expire and expire | MILLISECONDS)
        head = struct.pack("<BQQ", 3, len(values), version)
        self.put("default", self.meta_row(key), head + indexes + bytes(16) + times)
        for index, value in enumerate(values, LEFT + 1):
            self.put("list_data_cf", self.data_row(key, struct.pack("<Q", index), version), value + bytes(24))

    def stream(
        self,
        key: bytes,
        entries: Sequence[tuple[int, int, Sequence[bytes]]],
        *,
        last_id: tuple[int, int] | None = None,
        added: int | None = None,
        deleted: tuple[int, int] = (0, 0),
        version: int = 2,
    ) -> None:
        ids = (*(entries[0][:2] if entries else (0, 0)), *(last_id or entries[-1][:2]), *deleted)
        state = struct.pack("<IQ6Qi", 0, len(entries) if added is None else added, *ids, len(entries))
        self.put("default", self.meta_row(key), b"\5" + state + struct.pack("<Q", version))
        for ms, sequence, fields in entries:
            value = b"".join(struct.pack("<I", len(item)) + item for item in fields)
            self.put("stream_data_cf", self.data_row(key, struct.pack(">QQ", ms, sequence), version), value)

    @staticmethod
    def meta_row(key: bytes) -> bytes:
        return RESERVED + escape(key) + bytes(16)

    @staticmethod
    def data_row(key: bytes, data: bytes, version: int = VERSION) -> bytes:
        return RESERVED + escape(key) + struct.pack("<Q", version) + data + bytes(16)

    def close(self) -> None:
        lists = {"list_data_cf": FLOYD_LISTS}
        write_database(self.folder, self.rows, lists)


class BlackwidowWriter:
    """A 3.5 dump. Rows are held until `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, dict[str, Rows]] = {
            "strings": {"default": []},
            "hashes": {"default": [], "data_cf": []},
            "sets": {"default": [], "member_cf": []},
            "lists": {"default": [], "data_cf": []},
            "zsets": {"default": [], "data_cf": []},
        }

    def string(self, key: bytes, value: bytes, expire_s: int = 0) -> None:
        self.rows["strings"]["default"].append((key, value + struct.pack("<i", expire_s)))

    def hash(self, key: bytes, fields: Mapping[bytes, bytes], expire_s: int = 0, version: int = 1_794_770) -> None:
        self.rows["hashes"]["default"].append((key, struct.pack("<iii", len(fields), version, expire_s)))
        self.rows["hashes"]["data_cf"] += [(self.data_row(key, name, version), value) for name, value in fields.items()]

    def list(self, key: bytes, values: Sequence[bytes], expire_s: int = 0, version: int = 1_794_770) -> None:
        meta = struct.pack("<QiiQQ", len(values), version, expire_s, LEFT, LEFT + 1 + len(values))
        self.rows["lists"]["default"].append((key, meta))
        self.rows["lists"]["data_cf"] += [
            (self.data_row(key, struct.pack("<Q", index), version), value)
            for index, value in enumerate(values, LEFT + 1)
        ]

    @staticmethod
    def data_row(key: bytes, data: bytes, version: int) -> bytes:
        return struct.pack("<I", len(key)) + key + struct.pack("<i", version) + data

    def close(self) -> None:
        for name, families in self.rows.items():
            write_database(self.folder / name, families, {"data_cf": BLACKWIDOW_LISTS} if name == "lists" else {})


def write_database(folder: Path, families: Mapping[str, Rows], comparators: Mapping[str, str]) -> None:
    """A database with these rows; families with a comparator get one sorted file each, the others RocksDB writes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _write_by_rocksdb(folder, {name: rows for name, rows in families.items() if name not in comparators})
    for name, comparator in comparators.items():
        add_table(folder, name, comparator, families[name])


def _write_by_rocksdb(folder: Path, families: Mapping[str, Rows]) -> None:
    """Its own function, so that nothing holds the database after it: RocksDB tidies the folder when it closes."""
    database = Rdict(str(folder), options(), column_families={name: options() for name in families})
    for name, rows in families.items():
        handle = database.get_column_family_handle(name)
        for begin in range(0, len(rows), FLUSH_ROWS):
            batch = WriteBatch(raw_mode=True)
            for row, value in rows[begin : begin + FLUSH_ROWS]:
                batch.put(row, value, handle)
            database.write(batch)
        (database if name == "default" else database.get_column_family(name)).flush()
    database.close()


def add_table(folder: Path, family: str, comparator: str, rows: Rows, level: int = 6) -> None:
    """Adds a family to the MANIFEST, with rows as one sorted file."""
    found = read_manifest(folder)
    number = max([file.number for each in found.values() for file in each.files.values()], default=100) + 100
    identity = max(each.identity for each in found.values()) + 1
    ordered = sorted(rows, key=lambda row: ORDERS[comparator](row[0]))
    manifest = folder / (folder / "CURRENT").read_text().strip()
    which = varint(200) + varint(identity)
    edit = varint(1) + sized(comparator.encode()) + which + varint(201) + sized(family.encode())
    append_record(manifest, edit + varint(203) + varint(identity))
    if ordered:
        table = write_table(comparator, [(row + struct.pack("<Q", 1 << 8 | 1), value) for row, value in ordered])
        (folder / f"{number:06d}.sst").write_bytes(table)
        ends = [sized(ordered[at][0] + struct.pack("<Q", 1 << 8 | 1)) for at in (0, -1)]
        edit = (
            which
            + varint(3)
            + varint(number + 1)
            + varint(103)
            + varint(level)
            + varint(number)
            + varint(len(table))
            + b"".join(ends)
            + b"\1\1"
            + varint(1)
        )
        append_record(manifest, edit)


def write_table(comparator: str, rows: Rows, *, version: int = 5, rows_per_block: int = 100) -> bytes:
    """A table without compression, CRC-32C checksums, an index with whole keys and whole handles."""
    content = b""
    parts: list[bytes] = []
    size = 0

    def add(block: bytes) -> bytes:
        nonlocal size
        trailer = b"\0" + struct.pack("<I", mask(crc32c.crc32c(block + b"\0")))
        handle = varint(size) + varint(len(block))
        parts.append(block + trailer)
        size += len(block) + 5
        return handle

    index: Rows = []
    for begin in range(0, len(rows), rows_per_block):
        some = rows[begin : begin + rows_per_block]
        index.append((some[-1][0], add(block(some))))
    properties = add(block([(b"rocksdb.comparator", comparator.encode())]))
    index_handle = add(block(index))
    meta = add(block([(b"rocksdb.properties", properties)]))
    content = b"".join(parts)
    return content + struct.pack("<B40sIQ", 1, meta + index_handle, version, 0x88E241B785F4CFF7)


def block(rows: Rows) -> bytes:
    content = bytearray()
    last = b""
    for at, (key, value) in enumerate(rows):
        shared = 0
        while at and shared < min(len(key), len(last)) and key[shared] == last[shared]:
            shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return bytes(content) + struct.pack("<II", 0, 1)


def append_record(path: Path, record: bytes) -> None:
    at = path.stat().st_size
    with path.open("ab") as file:
        room = BLOCK_BYTES - at % BLOCK_BYTES
        assert room >= len(record) + 7, "a record that needs no fragments is enough here"
        kind_and_record = b"\1" + record
        file.write(struct.pack("<IH", mask(crc32c.crc32c(kind_and_record)), len(record)) + kind_and_record)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def sized(content: bytes) -> bytes:
    return varint(len(content)) + content
