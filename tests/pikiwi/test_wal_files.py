"""A WAL in files: appending, syncing, rotating, reading back, cleaning, beginning anew, and what it refuses."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pikiwi.wal_world import SEGMENT_BYTES, START, all_records, item, items, make, opened, record, segment_paths
from tidelog import faults
from tidelog.faults import Action
from tidelog.pikiwi.config import load_config
from tidelog.pikiwi.errors import CorruptWal, WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import FileWal, WalGone, WalPoint, WalReader, open_wal, wal_folder
from tidelog.pikiwi.wal import files as files_module
from tidelog.pikiwi.wal.mark import read_mark


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    yield
    faults.clear()


# --- writing and reading back ---


def test_what_was_synced_is_read_back_in_order_and_numbered_without_gaps(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 3))
        wal.append(7, items(4, 5))
        wal.sync()

        assert list(wal.read(0)) == [record(number) for number in range(1, 6)]
        assert list(wal.read(3)) == [record(4), record(5)]
        assert (wal.last_seq, wal.last_position) == (5, item(5)[0])


def test_a_wal_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    make(tmp_path, 3)
    with opened(tmp_path) as wal:
        assert (wal.last_seq, wal.last_position) == (3, item(3)[0])
        wal.append(7, items(4, 4))
        wal.sync()

    assert all_records(tmp_path) == [record(number) for number in range(1, 5)]


def test_a_new_wal_wants_to_know_where_it_begins(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        assert (wal.last_seq, wal.last_position, wal.first_position, wal.durable) == (0, None, None, None)
        with pytest.raises(WalError, match=r"reset\(\)"):
            wal.append(7, items(1, 1))


def test_nothing_counts_as_durable_before_the_sync(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 2))
        wal.sync()
        wal.append(7, items(3, 4))

        assert wal.last_seq == 4
        assert wal.durable is not None
        assert wal.durable.seq == 2
        assert list(wal.read(0)) == [record(1), record(2)]


def test_a_reader_of_another_process_sees_what_is_synced_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "PENDING_BYTES_MAX", 1)  # everything is written at once, synced or not
    reader = WalReader(tmp_path)
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 2))
        wal.sync()
        place = reader.after(0)
        wal.append(7, items(3, 3))
        assert segment_paths(tmp_path)[0].stat().st_size == 3 * 76, "record 3 is in the file already"

        assert list(reader.read(place)) == [record(1), record(2)]
        wal.sync()
        assert list(reader.read(place)) == [record(1), record(2), record(3)]


def test_one_sync_covers_a_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (synced.append(descriptor), real(descriptor)))
    with opened(tmp_path, 1 << 20) as wal:
        wal.reset(START)
        synced.clear()
        for number in range(1, 1001):
            wal.append(7, items(number, number))
        wal.sync()
        wal.sync()

        assert len(synced) == 1, "neither one a record, nor one for nothing"


def test_memory_is_bounded_between_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "PENDING_BYTES_MAX", 1000)
    with opened(tmp_path, 1 << 20) as wal:
        wal.reset(START)
        for number in range(1, 101):
            wal.append(7, items(number, number))
            assert wal.size_bytes - segment_paths(tmp_path)[0].stat().st_size < 1000 + 76
        wal.sync()

    assert len(all_records(tmp_path)) == 100


# --- segments ---


def test_files_are_called_after_where_they_begin(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(Position(267, 45_044_585))

    assert [path.name for path in segment_paths(tmp_path)] == ["wal-00000267-00000000000045044585-00000001.log"]


def test_segments_are_closed_at_their_size_and_name_the_end_of_the_one_before(tmp_path: Path) -> None:
    make(tmp_path, 200)  # 76 bytes each: 53 fit into a segment

    paths = segment_paths(tmp_path)
    assert [path.stat().st_size for path in paths] == [53 * 76, 53 * 76, 53 * 76, 41 * 76]
    assert paths[1].name == f"wal-00000003-{item(53)[0].offset:020}-00000002.log"
    assert all_records(tmp_path) == [record(number) for number in range(1, 201)]


def test_one_append_may_fill_several_segments(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 500))
        wal.sync()

        assert wal.segment_count == 10
        assert wal.size_bytes == 500 * 76 == sum(path.stat().st_size for path in segment_paths(tmp_path))
        assert [each.seq for each in wal.read(0)] == list(range(1, 501))


def test_an_item_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, [item(1), item(2, 3 * SEGMENT_BYTES), item(3)])
        wal.sync()

        assert wal.segment_count == 3
        assert list(wal.read(0)) == [record(1), record(2, 3 * SEGMENT_BYTES), record(3)]


# --- places ---


def test_seek_finds_the_last_record_at_or_before_a_position(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 300))
        wal.sync()

        assert wal.seek(START) == 0
        for number in (1, 2, 53, 54, 150, 299, 300):
            position = item(number)[0]
            assert wal.seek(position) == number
            assert wal.seek(Position(position.filenum, position.offset + 49)) == number
            assert wal.seek(Position(position.filenum, position.offset - 1)) == number - 1
        assert wal.seek(Position(99, 0)) == 300
        with pytest.raises(WalGone, match="3:99 is no longer in"):
            wal.seek(Position(3, 99))


def test_places_are_found_while_the_next_segment_was_begun_and_nothing_of_it_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 55))  # the first 53 fill a segment, which is synced; the rest waits

        assert wal.segment_count == 2
        assert wal.seek(item(50)[0]) == 50
        assert [each.seq for each in wal.read(50)] == [51, 52, 53]


def test_places_are_found_without_walking_the_same_stretch_again(tmp_path: Path) -> None:
    make(tmp_path, 20_000, size=200, segment_bytes=16 << 20)
    reader = WalReader(tmp_path)
    far = reader.after(19_000)
    read_bytes = 0
    real = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        nonlocal read_bytes
        read_bytes += length
        return real(descriptor, length, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", counted)
        assert reader.after(19_001).offset == far.offset + 256

    assert read_bytes <= 2 << 20, "of 5 MB in front of it"


def test_a_place_that_was_given_out_is_gone_on_from_directly(tmp_path: Path) -> None:
    make(tmp_path, 200)
    place = WalReader(tmp_path).after(150)
    with opened(tmp_path) as wal:
        wal.append(7, items(201, 210))

    fresh = WalReader(tmp_path)
    assert [each.seq for each in fresh.read(WalPoint(*place))] == list(range(151, 211))
    assert [each.seq for each in fresh.read(place, fresh.after(155))] == [151, 152, 153, 154, 155]


def test_advance_stops_at_the_first_bound_and_takes_a_record_at_least(tmp_path: Path) -> None:
    make(tmp_path, 200)
    reader = WalReader(tmp_path)
    start = reader.after(10)

    assert reader.advance(start, 5, 1 << 30) == reader.after(15)
    assert reader.advance(start, 1000, 76 * 100) == reader.after(110)
    assert reader.advance(start, 1000, 1) == reader.after(11)
    assert reader.advance(reader.after(200), 5, 5) == reader.after(200)
    assert reader.advance(start, 10_000, 1 << 30) == reader.durable()


def test_records_that_are_not_there_are_errors(tmp_path: Path) -> None:
    make(tmp_path, 3)

    with pytest.raises(WalError, match="record 4 is not in"):
        WalReader(tmp_path).after(4)
    with pytest.raises(WalError, match="there is no WAL in"):
        WalReader(tmp_path / "none").after(0)
    assert WalReader(tmp_path / "none").durable() is None


# --- cleaning ---


def test_segments_wholly_delivered_are_removed_but_for_the_newest(tmp_path: Path) -> None:
    with opened(tmp_path, retain=2) as wal:
        wal.reset(START)
        wal.append(7, items(1, 265))  # five segments of 53
        wal.sync()

        assert wal.clean(item(105)[0]) == 53 * 76, "the second segment ends with record 106"
        assert wal.first_position == item(53)[0]
        assert wal.clean(item(106)[0]) == 53 * 76
        assert wal.clean(item(265)[0]) == 53 * 76, "two are kept, though all was delivered"
        assert wal.segment_count == 2
        assert [each.seq for each in wal.read(159)] == list(range(160, 266))
        with pytest.raises(WalGone, match="record 158 is no longer in"):
            wal.read(158)
        assert wal.size_bytes == 106 * 76


def test_a_wal_that_was_cleaned_opens_again(tmp_path: Path) -> None:
    make(tmp_path, 265)
    with opened(tmp_path, retain=1) as wal:
        wal.clean(item(265)[0])
    with opened(tmp_path) as wal:
        assert (wal.last_seq, wal.segment_count) == (265, 1)
        assert wal.seek(item(220)[0]) == 220


def test_cleaning_that_was_interrupted_is_finished_at_the_next_opening(tmp_path: Path) -> None:
    make(tmp_path, 265)
    before = {path.name: path.read_bytes() for path in segment_paths(tmp_path)}
    with opened(tmp_path, retain=2) as wal:
        wal.clean(item(265)[0])
    for name, content in list(before.items())[1:3]:  # the first was removed, then the power went
        (tmp_path / name).write_bytes(content)

    with opened(tmp_path) as wal:
        assert wal.segment_count == 2
    assert len(segment_paths(tmp_path)) == 2


def test_a_reader_whose_segment_was_removed_is_told_so(tmp_path: Path) -> None:
    make(tmp_path, 265)
    reader = WalReader(tmp_path)
    old = reader.after(10)
    reading = reader.read(reader.after(0))
    assert next(reading) == record(1)
    with opened(tmp_path, retain=1) as wal:
        wal.clean(item(265)[0])

    with pytest.raises(WalGone, match="record 11 is no longer in"):
        list(reader.read(old))
    with pytest.raises(WalGone, match="was removed while it was read"):
        list(reading)


# --- beginning anew ---


def test_reset_begins_at_a_position_and_goes_on_counting(tmp_path: Path) -> None:
    make(tmp_path, 265)
    with opened(tmp_path) as wal:
        wal.reset(Position(9, 0))

        assert (wal.last_seq, wal.last_position, wal.first_position) == (265, Position(9, 0), Position(9, 0))
        assert [path.name for path in segment_paths(tmp_path)] == ["wal-00000009-00000000000000000000-00000006.log"]
        wal.append(8, [(Position(9, 10), b"new")])
        wal.sync()
        assert [(each.seq, each.payload) for each in wal.read(265)] == [(266, b"new")]
        assert wal.size_bytes == 59


def test_reset_may_go_back_since_a_new_lineage_counts_anew(tmp_path: Path) -> None:
    make(tmp_path, 3)
    with opened(tmp_path) as wal:
        wal.reset(Position(0, 0))
        wal.append(8, [(Position(0, 10), b"new")])
        wal.sync()
        assert [each.seq for each in wal.read(3)] == [4]


def test_a_wal_that_was_lost_goes_on_after_the_numbers_that_a_checkpoint_knows(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START, after_seq=500)
        wal.append(7, items(1, 1))
        wal.sync()
        assert [each.seq for each in wal.read(500)] == [501]
        wal.reset(Position(9, 0), after_seq=40)
        assert wal.last_seq == 501, "and never back"


def test_an_empty_wal_keeps_its_number_and_position_over_a_restart(tmp_path: Path) -> None:
    make(tmp_path, 3)
    with opened(tmp_path) as wal:
        wal.reset(Position(9, 0))
    with opened(tmp_path) as wal:
        assert (wal.last_seq, wal.last_position) == (3, Position(9, 0))
        wal.reset(Position(9, 0))
        assert segment_paths(tmp_path)[0].name.endswith("-00000002.log"), "the same beginning again changes nothing"


def test_a_reader_is_told_that_the_wal_began_anew(tmp_path: Path) -> None:
    make(tmp_path, 3)
    reader = WalReader(tmp_path)
    place = reader.after(1)
    with opened(tmp_path) as wal:
        wal.reset(Position(9, 0))

    with pytest.raises(WalGone, match="which begins at 9:0"):
        list(reader.read(place))
    durable = reader.durable()
    assert durable is not None
    assert list(reader.read(durable)) == []
    assert reader.first() == durable == reader.find(Position(9, 0))


@pytest.mark.parametrize("made", [True, False])
def test_beginning_anew_that_was_interrupted_is_finished(tmp_path: Path, made: bool) -> None:
    make(tmp_path, 3)
    old = segment_paths(tmp_path)[0]
    content = old.read_bytes()
    with opened(tmp_path) as wal:
        wal.reset(Position(9, 0))
    old.write_bytes(content)  # the mark was written; the new file perhaps not; the old one is still there
    new = segment_paths(tmp_path)[-1]
    if not made:
        new.unlink()
        assert list(WalReader(tmp_path).read(WalPoint(3, Position(9, 0), 2, 0))) == []

    with opened(tmp_path) as wal:
        assert (wal.last_seq, wal.last_position, wal.first_position) == (3, Position(9, 0), Position(9, 0))
    assert segment_paths(tmp_path) == [new]


# --- one writer ---


def test_two_receivers_never_share_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(WalError, match="in use by another receiver"):
        FileWal(tmp_path, SEGMENT_BYTES, 2)
    with opened(tmp_path):
        pass


def test_the_lock_is_gone_with_the_process(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from tidelog.pikiwi.wal import FileWal\n"
        "wal = FileWal(Path(sys.argv[1]), 4096, 2)\n"
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9

    with opened(tmp_path):
        pass


# --- failures ---


def test_a_failed_sync_is_final_and_nothing_of_it_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 1))
        wal.sync()
        wal.append(7, items(2, 2))
        faults.arm("disk.sync", Action("error", code=errno.EIO, count=1))
        with pytest.raises(WalError, match="Input/output error"):
            wal.sync()

        for refused in (
            wal.sync,
            lambda: wal.append(7, items(3, 3)),
            lambda: wal.reset(START),
            lambda: wal.clean(START),
        ):
            with pytest.raises(WalError, match="cannot be used any more: Input/output error"):
                refused()
        assert wal.durable is not None
        assert wal.durable.seq == 1
        mark = read_mark(tmp_path)
        assert mark is not None
        assert mark.durable.seq == 1


def test_a_full_disk_is_told_as_such_and_what_is_durable_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 2))
        wal.sync()
        wal.append(7, items(3, 3))
        faults.arm("disk.write", Action("error", code=errno.ENOSPC, count=1))
        with pytest.raises(WalError, match=r"No space left on device.*make room, then start again"):
            wal.sync()
    with opened(tmp_path) as wal:
        assert wal.last_seq == 2
        wal.append(7, items(3, 3))
    assert all_records(tmp_path) == [record(1), record(2), record(3)]


def test_a_write_that_the_system_cuts_short_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    make(tmp_path, 3)

    assert all_records(tmp_path) == [record(1), record(2), record(3)]


def test_a_failure_while_a_segment_is_begun_is_final(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        faults.arm("disk.sync-directory", Action("error", code=errno.EIO, count=1))
        with pytest.raises(WalError, match="Input/output error"):
            wal.append(7, items(1, 60))
    with opened(tmp_path) as wal:
        assert wal.last_seq == 53, "the first segment was synced before the second was begun"


def test_an_item_that_does_not_follow_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal.reset(START)
        wal.append(7, items(1, 2))
        for wrong in (item(2), (Position(3, 100), b"x"), (Position(0, 0), b"")):
            with pytest.raises(WalError, match="does not follow"):
                wal.append(7, [wrong])
        wal.append(7, items(3, 3))
        wal.sync()
        assert list(wal.read(0)) == [record(1), record(2), record(3)]


def test_close_makes_durable_what_was_appended_and_may_be_repeated(tmp_path: Path) -> None:
    wal = FileWal(tmp_path, SEGMENT_BYTES, 2)
    wal.reset(START)
    wal.append(7, items(1, 1))
    wal.close()
    wal.close()
    with pytest.raises(WalError, match="it is closed"):
        wal.append(7, items(2, 2))

    assert all_records(tmp_path) == [record(1)]


# --- damage ---


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    make(tmp_path, 265)
    first, second, *_ = paths = segment_paths(tmp_path)
    for gone, why in ((second, "is followed by"), (first, "with which it begins"), (paths[-1], "in which it ends")):
        content = gone.read_bytes()
        gone.unlink()
        with pytest.raises(CorruptWal, match=why):
            FileWal(tmp_path, SEGMENT_BYTES, 2)
        gone.write_bytes(content)
    with opened(tmp_path) as wal:
        assert wal.last_seq == 265


def test_a_file_shorter_than_what_was_durable_is_damage_and_says_where(tmp_path: Path) -> None:
    make(tmp_path, 3)
    path = segment_paths(tmp_path)[0]
    os.truncate(path, 2 * 76 + 5)

    with pytest.raises(CorruptWal, match="the file ends here, 228 bytes of it were durable") as raised:
        FileWal(tmp_path, SEGMENT_BYTES, 2)
    assert (raised.value.path, raised.value.offset) == (path, 157)
    with pytest.raises(CorruptWal, match="the file ends here"):
        all_records(tmp_path)


# --- which one ---


def test_layout_by_settings(tmp_path: Path) -> None:
    base = ["master_port=9221", f"wal_dir={tmp_path}/wal"]
    one, two, all_of_them = (load_config(None, [*base, f"db_name={names}"]) for names in ("db2", "db0,db1", "all"))

    assert wal_folder(one, "db2") == tmp_path / "wal"
    assert wal_folder(two, "db1") == tmp_path / "wal" / "db1"
    assert wal_folder(all_of_them, "db0") == tmp_path / "wal" / "db0"
    wal = open_wal(two, "db1")
    wal.reset(START)
    wal.close()
    assert segment_paths(tmp_path / "wal" / "db1")
