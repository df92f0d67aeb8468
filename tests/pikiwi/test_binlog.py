"""Items and their positions: our decoder, and the test master's arithmetic, against binlog files of real servers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pikiwi.master_binlog import Binlog, end_of, fragments, read_file, resp, write_file
from tidelog.pikiwi.binlog import HEADER_BYTES, BinlogItem, decode_item, encode_item, exec_time_of, start_of
from tidelog.pikiwi.errors import ProtocolError
from tidelog.pikiwi.position import ZERO, Position

FIXTURES = Path(__file__).parent / "fixtures"
BEGINNINGS = [
    (FIXTURES / f"binlog-{version}" / f"log_{db}" / "write2file0.head6200", 0)
    for version in ("3.5.5", "4.0.1")
    for db in ("db0", "db1")
]
ROLLED = [(FIXTURES / "binlog-4.0.1-tinyroll" / f"write2file{filenum}", filenum) for filenum in range(5)]
real_files = pytest.mark.parametrize(("path", "filenum"), BEGINNINGS + ROLLED, ids=lambda value: str(value)[-32:])

numbers32 = st.integers(0, 2**32 - 1)
numbers64 = st.integers(0, 2**64 - 1)
any_item = st.builds(
    BinlogItem, numbers32, numbers32, numbers64, st.builds(Position, numbers32, numbers64), st.binary(max_size=200)
)


@given(any_item)
def test_an_item_survives_its_bytes(item: BinlogItem) -> None:
    data = encode_item(item)
    assert decode_item(data) == item
    assert start_of(data) == item.start
    assert exec_time_of(data) == item.exec_time_s


@given(st.binary(max_size=100))
def test_bytes_are_an_item_or_a_protocol_error(data: bytes) -> None:
    try:
        item = decode_item(data)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            start_of(data)
        return
    assert encode_item(item) == data


@given(any_item, st.data())
def test_an_item_cut_short_is_none(item: BinlogItem, data: st.DataObject) -> None:
    whole = encode_item(item)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for decoder in (decode_item, start_of):
        with pytest.raises(ProtocolError):
            decoder(whole[:cut])


# --- real files ------------------------------------------------------------------------------------------------------


@real_files
def test_items_of_real_files_chain_and_end_where_our_arithmetic_says(path: Path, filenum: int) -> None:
    found = list(read_file(path, filenum))
    assert found
    before: Position | None = None
    for end, data in found:
        item = decode_item(data)
        begin = (
            item.start.offset if item.start.filenum == filenum else 0
        )  # the first of a file starts in the one before
        assert end_of(begin, len(data)) == end.offset
        if before is not None:
            assert item.start == before
        before = end


def test_files_of_a_real_master_chain_over_their_rolls() -> None:
    end = ZERO
    count = 0
    for path, filenum in ROLLED:
        for position, data in read_file(path, filenum):
            assert decode_item(data).start == end
            end = position
            count += 1
    assert end.filenum == 4
    assert count > 5


@pytest.mark.parametrize(("path", "filenum"), ROLLED, ids=str)
def test_our_own_files_are_byte_for_byte_those_of_a_real_master(path: Path, filenum: int) -> None:
    """But for the time in the header of each fragment."""
    real = bytearray(path.read_bytes())
    items = [data for _, data in read_file(path, filenum)]
    offset = 0
    for data in items:
        for at, _, _ in fragments(offset, len(data)):
            real[at + 3 : at + 7] = bytes(4)
        offset = end_of(offset, len(data))
    assert write_file(items, time_s=0) == real


# --- the test master's binlog ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=12), st.integers(100, 200_000))
def test_the_test_master_gives_the_positions_that_its_files_have(sizes: list[int], file_bytes: int) -> None:
    binlog = Binlog(file_bytes)
    for size in sizes:
        binlog.append(resp(b"SET", b"k", b"v" * size), 0)
    for file in binlog.files.values():
        assert len(write_file(file.items)) == file.ends[-1]


def test_the_test_master_rolls_where_a_real_one_did() -> None:
    """binlog-4.0.1-tinyroll: a file ends once it exceeds 1 KiB."""
    binlog = Binlog(1024)
    for path, filenum in ROLLED:
        for _, data in read_file(path, filenum):
            binlog.append(decode_item(data).content, 0)
    real = [end for path, filenum in ROLLED for end, _ in read_file(path, filenum)]
    assert [end for end, _ in binlog.all_items()] == real


def test_a_header_is_34_bytes() -> None:
    assert len(encode_item(BinlogItem(0, 0, 0, ZERO, b""))) == HEADER_BYTES == 34
