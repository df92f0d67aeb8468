"""The simulated disk promises what POSIX promises: each test is one promise kept, or one that nobody ever made."""

import errno
from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest

from tidelog.storage.disk import Disk, File

from .disk import SimDisk, SimulatedCrash
from .inode import BLOCK_BYTES

SEEDS = range(200)
Seen = TypeVar("Seen")


def outcomes(after_crash: Callable[[SimDisk], Seen], *, of: Callable[[SimDisk], object]) -> set[Seen]:
    """What `after_crash` sees over many power cuts that follow the actions `of`."""
    seen: set[Seen] = set()
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        disk.make_directory("d")
        disk.make_directory("e")
        of(disk)
        disk.crash()
        disk.restart()
        seen.add(after_crash(disk))
    return seen


def write(disk: SimDisk, path: str, data: bytes, *, sync: bool = True) -> None:
    file = disk.open_write(path)
    file.write_at(0, [data])
    if sync:
        file.sync()
    file.close()


def write_durably(disk: SimDisk, path: str, data: bytes) -> None:
    write(disk, path, data)
    disk.sync_directory(path.rpartition("/")[0])


def read(disk: SimDisk, path: str) -> bytes:
    return disk.open_read(path).read_at(0, 1 << 20)


def read_if_there(disk: SimDisk, path: str) -> bytes | None:
    return read(disk, path) if disk.exists(path) else None


def listing(disk: SimDisk) -> tuple[str, ...]:
    return tuple(disk.list_directory("d") + [f"e/{name}" for name in disk.list_directory("e")])


def fails_with(code: int, action: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=rf"\[Errno {code}\]"):
        action()


def test_it_is_a_disk() -> None:
    disk: Disk = SimDisk(Random(0))
    file: File = disk.open_write("f")
    assert file.alignment == 1


# ---- contents


def test_what_is_written_is_read_at_once_and_holes_are_zeros() -> None:
    disk = SimDisk(Random(0))
    file = disk.open_write("f")
    file.write_at(4, [b"ab", bytearray(b"cd"), memoryview(b"ef")])
    assert (file.size(), file.read_at(0, 8)) == (10, b"\0\0\0\0abcd")
    assert disk.open_read("f").read_at(8, 100) == b"ef"


def test_synced_content_survives_every_crash() -> None:
    data = bytes(range(256)) * 16
    assert outcomes(lambda disk: read(disk, "d/f"), of=lambda disk: write_durably(disk, "d/f", data)) == {data}


def test_unsynced_sectors_are_kept_lost_or_torn_each_on_its_own() -> None:
    old, new = b"o" * 2048, b"n" * 2048

    def overwrite(disk: SimDisk) -> None:
        write_durably(disk, "d/f", old)
        write(disk, "d/f", new, sync=False)

    seen = outcomes(lambda disk: read(disk, "d/f"), of=overwrite)
    assert {old, new} < seen
    assert any(content[:512] == old[:512] and content[512:1024] == new[:512] for content in seen)  # reordered
    assert any(content[:512] not in (old[:512], new[:512]) for content in seen)  # torn


def test_sectors_are_counted_from_the_start_of_the_file_not_of_the_write() -> None:
    def overwrite(disk: SimDisk) -> None:
        write_durably(disk, "d/f", b"o" * 1024)
        disk.open_write("d/f").write_at(500, [b"n" * 24])

    seen = outcomes(lambda disk: read(disk, "d/f")[500:524], of=overwrite)
    assert {b"n" * 12 + b"o" * 12, b"o" * 12 + b"n" * 12} < seen


def test_an_unsynced_append_may_leave_its_length_without_its_data() -> None:
    seen = outcomes(lambda disk: read(disk, "d/f"), of=_append_unsynced)
    assert {b"head", b"head" + b"x" * 100, b"head" + bytes(100)} < seen


def _append_unsynced(disk: SimDisk) -> None:
    write_durably(disk, "d/f", b"head")
    disk.open_write("d/f").write_at(4, [b"x" * 100])


def test_an_unsynced_truncation_is_kept_or_lost() -> None:
    def truncate(disk: SimDisk) -> None:
        write_durably(disk, "d/f", b"12345678")
        disk.open_write("d/f").truncate(4)

    assert outcomes(lambda disk: read(disk, "d/f"), of=truncate) == {b"1234", b"12345678"}


def test_a_synced_truncation_stays() -> None:
    def truncate(disk: SimDisk) -> None:
        write_durably(disk, "d/f", b"12345678")
        file = disk.open_write("d/f")
        file.truncate(4)
        file.truncate(6)
        file.sync()

    assert outcomes(lambda disk: read(disk, "d/f"), of=truncate) == {b"1234\0\0"}


def test_a_killed_process_loses_nothing_but_its_next_power_cut_may() -> None:
    lost = 0
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        write(disk, "f", b"data", sync=False)
        disk.kill()
        disk.restart()
        assert read(disk, "f") == b"data"
        disk.crash()
        disk.restart()
        lost += read_if_there(disk, "f") != b"data"
    assert 0 < lost < len(SEEDS)


# ---- names


def test_a_new_name_is_durable_only_after_its_directory_was_synced() -> None:
    assert outcomes(listing, of=lambda disk: write(disk, "d/f", b"x")) == {(), ("f",)}
    assert outcomes(listing, of=lambda disk: write_durably(disk, "d/f", b"x")) == {("f",)}


def test_a_prefix_of_the_operations_survives() -> None:
    def create_three(disk: SimDisk) -> None:
        for name in "abc":
            write(disk, f"d/{name}", b"")

    assert outcomes(listing, of=create_three) == {(), ("a",), ("a", "b"), ("a", "b", "c")}


def test_directories_lose_their_operations_independently() -> None:
    def create_two(disk: SimDisk) -> None:
        write(disk, "d/f", b"")
        write(disk, "e/f", b"")

    assert outcomes(listing, of=create_two) == {(), ("f",), ("e/f",), ("f", "e/f")}


def test_a_removal_that_is_undone_brings_the_content_back() -> None:
    def remove(disk: SimDisk) -> None:
        write_durably(disk, "d/f", b"data")
        disk.remove("d/f")
        assert not disk.exists("d/f")

    assert outcomes(lambda disk: read_if_there(disk, "d/f"), of=remove) == {None, b"data"}


def test_replacing_by_rename_leaves_the_old_or_the_new_file_whole() -> None:
    def replace(disk: SimDisk) -> None:
        write_durably(disk, "d/f", b"old")
        write(disk, "d/f.new", b"new")
        disk.rename("d/f.new", "d/f")

    assert outcomes(lambda disk: read(disk, "d/f"), of=replace) == {b"old", b"new"}


def test_renaming_an_unsynced_file_over_a_good_one_can_leave_nothing() -> None:
    def replace(disk: SimDisk) -> None:
        write_durably(disk, "d/f", b"old")
        write(disk, "d/f.new", b"new", sync=False)
        disk.rename("d/f.new", "d/f")
        disk.sync_directory("d")

    assert {b"", b"new"} <= outcomes(lambda disk: read(disk, "d/f"), of=replace)


def test_a_rename_between_directories_happens_in_both_or_in_none() -> None:
    def move(disk: SimDisk) -> None:
        write_durably(disk, "d/f", b"data")
        write(disk, "d/later", b"")
        disk.rename("d/f", "e/f")

    def state(disk: SimDisk) -> object:
        return listing(disk), read_if_there(disk, "d/f") or read_if_there(disk, "e/f")

    assert outcomes(state, of=move) == {
        (("f",), b"data"),
        (("f", "later"), b"data"),
        (("later", "e/f"), b"data"),
    }


@pytest.mark.parametrize("synced", ["d", "e"])
def test_syncing_either_directory_completes_a_rename_between_them(synced: str) -> None:
    def move(disk: SimDisk) -> None:
        write(disk, "d/f", b"data")
        disk.rename("d/f", "e/f")
        disk.sync_directory(synced)

    assert outcomes(listing, of=move) == {("e/f",)}


def test_a_removed_directory_comes_back_with_the_files_whose_removal_was_lost() -> None:
    def remove_all(disk: SimDisk) -> None:
        disk.make_directory("d/sub")
        write_durably(disk, "d/sub/f", b"data")
        disk.remove("d/sub/f")
        disk.remove_directory("d/sub")

    def state(disk: SimDisk) -> object:
        return disk.exists("d/sub"), read_if_there(disk, "d/sub/f")

    assert outcomes(state, of=remove_all) == {(True, b"data"), (True, None), (False, None)}


def test_a_directory_can_be_renamed_with_all_that_is_in_it() -> None:
    disk = SimDisk(Random(0))
    disk.make_directory("a/b")
    write_durably(disk, "a/b/f", b"data")
    disk.rename("a/b", "c")
    disk.sync_directory("")
    disk.crash()
    disk.restart()
    assert (disk.list_directory("a"), read(disk, "c/f")) == ([], b"data")


def test_handles_stay_on_their_file_when_it_is_renamed_or_removed() -> None:
    disk = SimDisk(Random(0))
    write(disk, "f", b"data")
    file = disk.open_write("f")
    disk.rename("f", "g")
    file.write_at(0, [b"DATA"])
    assert read(disk, "g") == b"DATA"
    disk.remove("g")
    assert file.read_at(0, 4) == b"DATA"


def test_wrong_names_get_the_error_a_kernel_gives() -> None:
    disk = SimDisk(Random(0))
    disk.make_directory("d")
    write(disk, "d/f", b"")
    fails_with(errno.ENOENT, lambda: disk.open_read("missing"))
    fails_with(errno.ENOENT, lambda: disk.open_write("missing/f"))
    fails_with(errno.ENOENT, lambda: disk.remove("missing"))
    fails_with(errno.ENOENT, lambda: disk.rename("missing", "f"))
    fails_with(errno.ENOTEMPTY, lambda: disk.remove_directory("d"))
    fails_with(errno.ENOTDIR, lambda: disk.make_directory("d/f/g"))
    fails_with(errno.EISDIR, lambda: disk.open_write("d"))
    fails_with(errno.EBADF, lambda: disk.open_read("d/f").write_at(0, [b"x"]))
    assert disk.list_directory("missing") == []


# ---- crashes and locks


def test_handles_and_the_disk_are_dead_after_a_crash() -> None:
    disk = SimDisk(Random(0))
    file = disk.open_write("f")
    disk.crash()
    for action in (lambda: file.write_at(0, [b"x"]), file.sync, file.size, lambda: disk.exists("f")):
        with pytest.raises(SimulatedCrash):
            action()
    file.close()
    disk.restart()
    with pytest.raises(SimulatedCrash):
        file.read_at(0, 1)


def test_an_armed_crash_strikes_after_the_given_number_of_changes() -> None:
    disk = SimDisk(Random(0))
    disk.crash_after(3)
    file = disk.open_write("f")
    file.write_at(0, [b"x"])
    file.read_at(0, 1)
    file.sync()
    with pytest.raises(SimulatedCrash):
        disk.sync_directory("")
    assert disk.down


def test_an_armed_crash_strikes_before_in_and_after_the_operation() -> None:
    durable_names, lengths = set(), set()
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        file = disk.open_write("f")
        disk.sync_directory("")
        disk.crash_after(0)
        with pytest.raises(SimulatedCrash):
            file.write_at(0, [b"x" * 4096])
        disk.restart()
        lengths.add(len(read(disk, "f").rstrip(b"\0")))
        disk.open_write("g")
        disk.crash_after(0)
        with pytest.raises(SimulatedCrash):
            disk.sync_directory("")
        durable_names.add(disk.durable_content("g"))
    assert durable_names == {None, b""}
    assert {0, 4096} < lengths


def test_a_lock_is_exclusive_until_it_is_closed_or_its_holder_dies() -> None:
    disk = SimDisk(Random(0))
    held = disk.lock("lock")
    with pytest.raises(BlockingIOError):
        disk.lock("lock")
    held.close()
    disk.lock("lock")
    disk.kill()
    disk.restart()
    disk.lock("lock").close()


# ---- bad media


def test_a_failed_sync_loses_for_good_what_readers_still_see() -> None:
    lost = 0
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        write(disk, "f", b"")
        disk.sync_directory("")
        file = disk.open_write("f")
        file.write_at(0, [b"data"])
        disk.fail_next_sync()
        fails_with(errno.EIO, file.sync)
        file.sync()
        assert file.read_at(0, 4) == b"data"
        lost += disk.durable_content("f") != b"data"
    assert 0 < lost < len(SEEDS)


def test_a_full_disk_refuses_new_blocks_but_not_writes_over_old_ones() -> None:
    disk = SimDisk(Random(0), space_bytes=4 * BLOCK_BYTES)
    file = disk.open_write("f")
    file.write_at(0, [bytes(2 * BLOCK_BYTES)])
    assert disk.used_bytes == 3 * BLOCK_BYTES
    fails_with(errno.ENOSPC, lambda: file.write_at(BLOCK_BYTES, [b"x" * 3 * BLOCK_BYTES]))
    assert (file.size(), file.read_at(3 * BLOCK_BYTES - 1, 9)) == (3 * BLOCK_BYTES, b"x")  # what fitted is there
    file.write_at(0, [b"y" * 3 * BLOCK_BYTES])
    fails_with(errno.ENOSPC, lambda: disk.open_write("g"))
    file.truncate(BLOCK_BYTES)
    write(disk, "g", b"z")
    assert disk.used_bytes == 4 * BLOCK_BYTES


def test_filling_a_hole_needs_space() -> None:
    disk = SimDisk(Random(0), space_bytes=3 * BLOCK_BYTES)
    file = disk.open_write("f")
    file.truncate(10 * BLOCK_BYTES)
    assert disk.used_bytes == BLOCK_BYTES
    file.write_at(9 * BLOCK_BYTES, [b"x"])
    file.write_at(0, [b"x"])
    fails_with(errno.ENOSPC, lambda: file.write_at(5 * BLOCK_BYTES, [b"x"]))


def test_a_removed_file_gives_its_space_back_with_its_last_handle() -> None:
    disk = SimDisk(Random(0))
    file = disk.open_write("f")
    file.write_at(0, [bytes(BLOCK_BYTES)])
    disk.remove("f")
    assert disk.used_bytes == 2 * BLOCK_BYTES
    file.close()
    assert disk.used_bytes == 0


def test_a_flipped_bit_is_seen_by_readers_and_survives() -> None:
    disk = SimDisk(Random(0))
    write(disk, "f", b"abc")
    disk.sync_directory("")
    disk.flip_bit("f", 1, 0)
    assert read(disk, "f") == b"acc"
    disk.crash()
    disk.restart()
    assert read(disk, "f") == b"acc"


def test_direct_files_insist_on_whole_sectors() -> None:
    disk = SimDisk(Random(0))
    file = disk.open_write("f", direct=True)
    assert file.alignment == 512
    file.write_at(512, [b"x" * 500, b"y" * 12])
    fails_with(errno.EINVAL, lambda: file.write_at(1, [bytes(512)]))
    fails_with(errno.EINVAL, lambda: file.write_at(0, [bytes(511)]))
    assert SimDisk(Random(0), direct=False).open_write("f", direct=True).alignment == 1


def test_the_same_seed_gives_the_same_crash() -> None:
    def life(seed: int) -> bytes:
        disk = SimDisk(Random(seed))
        disk.make_directory("d")
        disk.make_directory("e")
        _append_unsynced(disk)
        disk.open_write("d/f").write_at(2, [b"y" * 5000])
        disk.crash()
        disk.restart()
        return read(disk, "d/f")

    assert [life(seed) for seed in SEEDS] == [life(seed) for seed in SEEDS]
