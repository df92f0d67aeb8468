"""The WAL against a list in memory: any order of appending, syncing, cleaning, beginning anew, dying and reading."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidelog.pikiwi.errors import CorruptWal
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import FileWal, WalGone, WalReader, WalRecord

SEGMENT_BYTES = 300
RETAIN = 2


class WalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()  # processes die here, the power stays: syncs only cost time
        for name in ("fdatasync", "fsync"):
            self.patch.setattr(os, name, lambda _descriptor: None)
        self.folder = Path(tempfile.mkdtemp())
        self.reader = WalReader(self.folder)

    @initialize(start=st.integers(0, 1000))
    def begin(self, start: int) -> None:
        self.wal = FileWal(self.folder, SEGMENT_BYTES, RETAIN)
        self.position = Position(1, start)
        self.wal.reset(self.position)
        self.seq = 0
        self.begins = self.position  # where the WAL began, or was cleaned up to at most
        self.durable: list[WalRecord] = []
        self.pending: list[WalRecord] = []

    @rule(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=12), roll=st.booleans(), epoch=st.integers(0, 9))
    def append(self, sizes: list[int], roll: bool, epoch: int) -> None:
        items: list[tuple[Position, bytes]] = []
        for size in sizes:
            filenum, offset = self.position
            self.position = Position(filenum + 1, size + 1) if roll else Position(filenum, offset + size + 1)
            roll = False
            self.seq += 1
            payload = self.seq.to_bytes(8, "big") * (size // 8)
            items.append((self.position, payload))
            self.pending.append(WalRecord(epoch, self.seq, self.position, payload))
        self.wal.append(epoch, items)
        if self.wal.durable is not None:  # a segment that was full is durable already
            arrived = [each for each in self.pending if each.seq <= self.wal.durable.seq]
            self.durable += arrived
            self.pending = self.pending[len(arrived) :]

    @rule()
    def sync(self) -> None:
        self.wal.sync()
        self.durable += self.pending
        self.pending = []

    @rule()
    def close_and_open(self) -> None:
        self.sync()
        self.wal.close()
        self.wal = FileWal(self.folder, SEGMENT_BYTES, RETAIN)

    @rule()
    def die_and_open(self) -> None:
        """As by kill -9: what was not synced may or may not be there."""
        image = Path(tempfile.mkdtemp())
        shutil.copytree(self.folder, image, dirs_exist_ok=True)
        self.wal.close()
        shutil.rmtree(self.folder)
        image.rename(self.folder)
        self.wal = FileWal(self.folder, SEGMENT_BYTES, RETAIN)
        arrived = [each for each in self.pending if each.seq <= self.wal.last_seq]
        self.durable += arrived
        self.pending = []
        self.seq = self.wal.last_seq
        position = self.wal.last_position
        assert position is not None
        self.position = position

    @rule(back=st.integers(0, 30))
    def clean(self, back: int) -> None:
        if not self.durable:
            return
        ack = self.durable[max(0, len(self.durable) - 1 - back)]
        size = self.wal.size_bytes
        removed = self.wal.clean(ack.position)
        assert self.wal.size_bytes == size - removed
        first = self.wal.first_position
        assert first is not None
        assert first <= ack.position, "what was not delivered stays"
        self.durable = [each for each in self.durable if each.position > first]
        self.begins = first

    @rule(jump=st.integers(0, 5))
    def reset(self, jump: int) -> None:
        self.position = Position(self.position.filenum + jump, 0 if jump else self.position.offset)
        self.wal.reset(self.position)
        self.begins = self.position
        self.durable, self.pending = [], []

    @rule(index=st.integers(0, 1000))
    def seek(self, index: int) -> None:
        if not self.durable:
            return
        one = self.durable[index % len(self.durable)]
        assert self.wal.seek(one.position) == one.seq
        assert self.wal.seek(Position(one.position.filenum, one.position.offset - 1)) == one.seq - 1
        assert list(self.wal.read(one.seq)) == [each for each in self.durable if each.seq > one.seq]

    @rule()
    def seek_before_the_beginning(self) -> None:
        if self.begins.offset > 0:
            with pytest.raises(WalGone):
                self.wal.seek(Position(self.begins.filenum, self.begins.offset - 1))

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        assert self.wal.last_seq == self.seq
        assert self.wal.last_position == self.position
        assert self.wal.first_position == self.begins
        first = self.reader.first()
        assert first is not None
        assert list(self.reader.read(first)) == self.durable

    def teardown(self) -> None:
        self.wal.close()
        shutil.rmtree(self.folder)
        self.patch.undo()


TestWalModel = WalMachine.TestCase
TestWalModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_reader_of_an_empty_folder_finds_nothing(tmp_path: Path) -> None:
    assert WalReader(tmp_path).first() is None


def test_a_reader_of_a_folder_that_lost_its_segment_says_so(tmp_path: Path) -> None:
    wal = FileWal(tmp_path, SEGMENT_BYTES, RETAIN)
    wal.reset(Position(1, 0))
    wal.append(1, [(Position(1, 1), b"x")])
    wal.close()
    next(tmp_path.glob("wal-*.log")).unlink()

    with pytest.raises(CorruptWal, match="is missing"):
        WalReader(tmp_path).first()
