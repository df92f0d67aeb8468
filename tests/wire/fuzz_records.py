"""Coverage-guided fuzzing of everything that decodes what a stranger sent: `python -m tests.wire.fuzz_records [dir]`.

`fuzz_one` takes any bytes, and must return: the first byte says which decoder gets the rest, and how. Where a checksum
stands before the decoder it is made right first, or the fuzzer would never get behind it. A finding is any error but
CorruptBatchError, any result past its limit, or a hang (libFuzzer's -timeout). atheris is no dependency of the project;
without it, test_records.py runs `fuzz_one` over random bytes.
"""

import struct
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from tidelog.wire.batch import HEADER_BYTES, LENGTH_END, CorruptBatchError, build_own_batch, read_header, seal
from tidelog.wire.compression import Codec, decompress, looks_compressed, mend_lz4_header
from tidelog.wire.message_set import read_message_set, write_message_set
from tidelog.wire.records import (
    InvalidBatchError,
    Record,
    build_batch,
    check_produced,
    first_at_time,
    newest_record,
    read_records,
)

LIMIT = 1 << 16


def _decompress(choice: int, data: bytes) -> None:
    codec = Codec(choice % len(Codec))
    looks_compressed(choice, data)
    assert len(decompress(codec, data, LIMIT)) <= LIMIT


def _old_lz4(_: int, data: bytes) -> None:
    decompress(Codec.LZ4, mend_lz4_header(data), LIMIT)


def _forge(choice: int, data: bytes) -> bytearray:
    """A batch with a right checksum around `data`, whose first four bytes say how many records it claims."""
    batch = build_batch([Record(b"")], 100)[:HEADER_BYTES] + data[4:]
    (count,) = struct.unpack(">i", data[:4].ljust(4, b"\0"))
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_END)
    struct.pack_into(">hi", batch, 21, choice, max(count - 1, 0))
    struct.pack_into(">i", batch, 57, count)
    seal(batch)
    return batch


def _records(choice: int, data: bytes) -> None:
    batch = _forge(choice, data)
    with suppress(InvalidBatchError):
        check_produced(read_header(batch), batch, choice & 15)
    records = read_records(batch, LIMIT)
    if records and not choice & 0x08:  # the append time hides the records' own
        assert newest_record(batch, LIMIT)[1] == max(record.timestamp for record in records)


def _time(choice: int, data: bytes) -> None:
    first_at_time(_forge(choice, data), 0, LIMIT)


def _raw_batch(_: int, data: bytes) -> None:
    read_records(data, LIMIT)


def _message_set(_: int, data: bytes) -> None:
    for batch in read_message_set(data, bytes_max=LIMIT):
        assert read_records(batch)


def _message(choice: int, data: bytes) -> None:
    """One message whose checksum is right."""
    content = struct.pack(">bb", choice & 1, choice >> 1) + data
    _message_set(0, struct.pack(">qiI", 0, 4 + len(content), zlib.crc32(content)) + content)


def _down(choice: int, data: bytes) -> None:
    batches = bytes(_forge(choice, data) + build_own_batch(1, b"", 101, 1))
    write_message_set(batches, 1 if choice & 0x40 else 0, 0, LIMIT)


TARGETS: tuple[Callable[[int, bytes], None], ...] = (
    _decompress,
    _old_lz4,
    _records,
    _time,
    _raw_batch,
    _message_set,
    _message,
    _down,
)


def fuzz_one(data: bytes) -> None:
    """The first byte chooses the decoder, the second how it is called."""
    if len(data) < 2:
        return
    with suppress(CorruptBatchError):
        TARGETS[data[0] % len(TARGETS)](data[1] & 0x7F, data[2:])


def main() -> int:
    try:
        atheris: Any = import_module("atheris")
    except ImportError:
        print("fuzzing needs atheris, which has wheels for some Pythons only: pip install atheris", file=sys.stderr)
        return 1
    atheris.instrument_all()
    atheris.Setup([*sys.argv, "-timeout=5"], fuzz_one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
