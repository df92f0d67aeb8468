"""Whatever ends a receiver, and whenever: what it said is durable is there, and a torn end is repaired."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pikiwi.power_cut import SECTOR_BYTES, WatchedDisk
from tests.pikiwi.wal_world import SEGMENT_BYTES, START, all_records, item, items, make, opened, record, segment_paths
from tidelog import faults
from tidelog.faults import Action
from tidelog.pikiwi.errors import CorruptWal, WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import FileWal, WalPoint, WalReader
from tidelog.pikiwi.wal import files as files_module
from tidelog.pikiwi.wal.mark import NAME as MARK_NAME
from tidelog.pikiwi.wal.mark import SLOT_STEP, MarkFile, decode_mark
from tidelog.pikiwi.wal.record import encode_records

DURABLE, LAST = 5, 8  # records of `torn`
RECORD_BYTES = 76


@pytest.fixture(autouse=True)
def cleared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Which syncs there are, and when, is what matters here; that the kernel then syncs would only take time."""
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda _descriptor: None)
    yield
    faults.clear()


@pytest.fixture
def torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As a killed process leaves it: records 1 to 5 synced, 6 to 8 only written."""
    monkeypatch.setattr(files_module, "PENDING_BYTES_MAX", 1)
    with opened(tmp_path / "live") as wal:
        wal.reset(START)
        wal.append(7, items(1, DURABLE))
        wal.sync()
        wal.append(7, items(DURABLE + 1, LAST))
        shutil.copytree(tmp_path / "live", tmp_path / "torn")
    return tmp_path / "torn"


def check_usable(folder: Path, last: int) -> None:
    """It holds records 1 to `last`, and goes on with the next."""
    with opened(folder) as wal:
        assert wal.last_seq == last
        wal.append(7, items(last + 1, last + 2))
    assert all_records(folder) == [record(number) for number in range(1, last + 3)]


# --- the torn tail ---


def test_an_end_cut_at_any_byte_keeps_every_whole_record(torn: Path, tmp_path: Path) -> None:
    path = segment_paths(torn)[0]
    for size in range(DURABLE * RECORD_BYTES, LAST * RECORD_BYTES + 1):
        image = tmp_path / f"cut-{size}"
        shutil.copytree(torn, image)
        os.truncate(image / path.name, size)

        check_usable(image, size // RECORD_BYTES)
        shutil.rmtree(image)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_unsynced_bytes_that_arrived_in_any_order_are_a_torn_tail_and_never_damage(
    torn: Path, tmp_path: Path, data: st.DataObject
) -> None:
    image = tmp_path / "image"
    shutil.rmtree(image, ignore_errors=True)
    shutil.copytree(torn, image)
    path = image / segment_paths(torn)[0].name
    content = bytearray(path.read_bytes())
    for at in range(DURABLE * RECORD_BYTES, len(content), 16):
        if data.draw(st.booleans()):
            content[at : at + 16] = bytes(len(content[at : at + 16]))
    path.write_bytes(content)

    with opened(image) as wal:
        last = wal.last_seq
    assert DURABLE <= last <= LAST
    check_usable(image, last)


@pytest.mark.parametrize("garbage", [b"\0" * 100, b"PWAL" + b"\xff" * 90, os.urandom(300)])
def test_garbage_behind_the_last_record_is_cut_off(torn: Path, garbage: bytes) -> None:
    with open(segment_paths(torn)[0], "ab") as file:
        file.write(garbage)

    check_usable(torn, LAST)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3), st.binary(max_size=400), st.booleans())
def test_arbitrary_bytes_behind_whole_records_are_cut_off(
    tmp_path: Path, whole: int, garbage: bytes, alike: bool
) -> None:
    """`alike`: they begin as a record does, whose length and checksums are then nonsense."""
    folder = tmp_path / "fuzzed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    parts, _ = encode_records(7, 0, START, items(1, whole))
    start = b"PWAL\x38\0\x01\x01" if alike else b""
    name = f"wal-{START.filenum:08}-{START.offset:020}-00000001.log"
    (folder / name).write_bytes(b"".join(parts) + start + garbage)

    with opened(folder) as wal:
        assert (wal.last_seq, wal.size_bytes) == (whole, whole * RECORD_BYTES)
    check_usable(folder, whole)


def test_what_is_kept_of_an_unsynced_end_is_written_again_before_it_counts(
    torn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int, int]] = []
    real_pwrite, real_sync = os.pwrite, os.fdatasync

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        done.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), offset, len(data)))
        return real_pwrite(descriptor, data, offset)

    def fdatasync(descriptor: int) -> None:
        done.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), -1, -1))
        real_sync(descriptor)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    name = segment_paths(torn)[0].name
    wal = FileWal(torn, SEGMENT_BYTES, 2)

    assert done[:2] == [(name, DURABLE * RECORD_BYTES, 3 * RECORD_BYTES), (name, -1, -1)]
    assert done[2][0] == MARK_NAME, "only then does the mark move"
    wal.close()


# --- damage is not a torn tail ---


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_in_what_was_durable_is_reported_with_file_and_byte(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "flipped"
    shutil.rmtree(folder, ignore_errors=True)
    make(folder, 120)  # three segments: 53, 53, 14 records
    path = data.draw(st.sampled_from(segment_paths(folder)))
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)

    with opened(folder) as wal:
        assert wal.last_seq == 120, "nothing is cut off: it was durable"
    with pytest.raises(CorruptWal) as raised:
        all_records(folder)
    assert (raised.value.path, raised.value.offset) == (path, bit // 8 // RECORD_BYTES * RECORD_BYTES)
    assert str(path) in str(raised.value)
    assert "damaged at byte" in str(raised.value)


def test_damage_in_an_earlier_segment_is_found_at_opening_when_the_mark_is_lost(tmp_path: Path) -> None:
    make(tmp_path, 120)
    (tmp_path / MARK_NAME).unlink()
    path = segment_paths(tmp_path)[1]
    content = bytearray(path.read_bytes())
    content[3 * RECORD_BYTES + 60] ^= 1
    path.write_bytes(content)

    with pytest.raises(CorruptWal, match="checksum of the payload") as raised:
        FileWal(tmp_path, SEGMENT_BYTES, 2)
    assert (raised.value.path, raised.value.offset) == (path, 3 * RECORD_BYTES)


def test_an_earlier_segment_that_lost_its_end_is_damage_though_every_record_is_whole(tmp_path: Path) -> None:
    make(tmp_path, 120)
    os.truncate(segment_paths(tmp_path)[0], 50 * RECORD_BYTES)

    with pytest.raises(CorruptWal, match="record 54 stands where 51 is due") as raised:
        all_records(tmp_path)
    assert (raised.value.path, raised.value.offset) == (segment_paths(tmp_path)[1], 0)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_never_leads_a_search_to_a_wrong_place(tmp_path: Path, data: st.DataObject) -> None:
    """Searching skips most checksums: it may pass over damage that does not matter to it, and must not fall for any."""
    folder = tmp_path / "searched"
    shutil.rmtree(folder, ignore_errors=True)
    make(folder, 70)  # two segments
    path = data.draw(st.sampled_from(segment_paths(folder)))
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    number = data.draw(st.integers(0, 69))

    for search in (
        lambda reader: reader.after(number),
        lambda reader: reader.find(item(number)[0] if number else START),
        lambda reader: reader.advance(reader.first(), number, 1 << 30) if number else reader.after(0),
    ):
        try:
            found = search(WalReader(folder))[:2]
        except CorruptWal as error:
            found = error.path, error.offset
        right = number, item(number)[0] if number else START
        assert found in (right, (path, bit // 8 // RECORD_BYTES * RECORD_BYTES))


def test_positions_that_go_back_are_damage_though_every_record_is_whole(tmp_path: Path) -> None:
    first, _ = encode_records(7, 0, START, [item(2)])
    second, _ = encode_records(7, 1, START, [item(1)])
    (tmp_path / "wal-00000003-00000000000000000100-00000001.log").write_bytes(b"".join(first + second))
    mark = MarkFile(tmp_path, 0)
    mark.write(1, WalPoint(2, item(1)[0], 1, 2 * RECORD_BYTES))
    mark.close()

    with pytest.raises(CorruptWal, match="record 2 ends at 3:150, which does not follow 3:200") as raised:
        all_records(tmp_path)
    assert raised.value.offset == RECORD_BYTES


# --- the mark ---


@pytest.mark.parametrize("slot", [0, 1])
def test_one_damaged_slot_of_the_mark_leaves_the_other(torn: Path, slot: int) -> None:
    path = torn / MARK_NAME
    content = bytearray(path.read_bytes())
    content[slot * SLOT_STEP + 20] ^= 0xFF
    path.write_bytes(content)

    assert decode_mark(bytes(content)) is not None
    check_usable(torn, LAST)


def test_a_lost_mark_is_made_again_from_the_records(torn: Path) -> None:
    (torn / MARK_NAME).unlink()

    check_usable(torn, LAST)


@given(st.binary(max_size=700))
def test_arbitrary_bytes_are_no_mark(data: bytes) -> None:
    assert decode_mark(data) is None


# --- every step ---


def workload(wal: FileWal, acknowledged: Callable[[int, int], None]) -> None:
    """Everything a receiver does, with segments that hold few records. Tells (first, last) that must be there."""
    if wal.last_position is None:
        wal.reset(START)
    first = 1
    number = 0
    for size in (1, 3, 9, 2, 30, 4, 1, 25):
        wal.append(7, items(number + 1, number + size))
        wal.sync()
        number += size
        acknowledged(first, number)
        if number > 40:
            delivered = number - 20
            acknowledged(delivered + 1, number)  # what was delivered may go
            first = delivered + 1
            wal.clean(item(delivered)[0])
    acknowledged(0, -1)
    wal.reset(Position(9, 0))
    acknowledged(1, 0)
    wal.append(8, [(Position(9, 10), b"anew")])
    wal.sync()
    acknowledged(number + 1, number + 1)


def seqs(folder: Path) -> list[int]:
    with opened(folder, 700) as wal:
        if wal.first_position is None:
            return []
        return [each.seq for each in wal.read(wal.seek(wal.first_position))]


def test_power_may_fail_before_any_step_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with WatchedDisk(tmp_path / "whole") as disk:
        workload(FileWal(tmp_path / "whole", 700, 1), lambda _first, _last: None)
    assert disk.steps > 100

    for step in range(disk.steps):
        told = (1, 0)

        def acknowledged(first: int, last: int) -> None:
            nonlocal told
            told = (first, last)

        folder = tmp_path / f"cut-{step}"
        with WatchedDisk(folder, step) as cut:
            workload(FileWal(folder, 700, 1), acknowledged)
        if not folder.exists():
            continue
        for seed in range(4):
            image = tmp_path / f"image-{step}-{seed}"
            cut.left(image, random.Random(seed))

            found = seqs(image)
            assert found == list(range(found[0], found[-1] + 1)) if found else True
            assert set(range(told[0], told[1] + 1)) <= set(found), f"step {step}, seed {seed}"
            shutil.rmtree(image)
        shutil.rmtree(folder)


@pytest.mark.parametrize("point", ["disk.write", "disk.sync", "disk.sync-directory"])
def test_any_write_or_sync_may_fail_and_the_next_start_has_what_was_acknowledged(tmp_path: Path, point: str) -> None:
    hit = 0
    while True:
        told = (1, 0)

        def acknowledged(first: int, last: int) -> None:
            nonlocal told
            told = (first, last)

        folder = tmp_path / str(hit)
        faults.arm(point, Action("error", code=errno.EIO, skip=hit, count=1))
        wal = None
        try:
            wal = FileWal(folder, 700, 1)
            workload(wal, acknowledged)
        except WalError:
            pass
        else:
            break  # every hit of the point has had its turn
        finally:
            faults.clear()
            if wal is not None:
                wal.close()
        assert set(range(told[0], told[1] + 1)) <= set(seqs(folder)), f"hit {hit}"
        hit += 1
    assert hit > 5


def test_sectors_are_smaller_than_segments_of_these_tests() -> None:
    assert SECTOR_BYTES < 700 < SEGMENT_BYTES
