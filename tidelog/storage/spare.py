"""The file for a stream's next segment, made while the present one fills.

Blocks that were never written are dear to write to, so zeros are written ahead (see `pool`). Not all at once: a few
hundred megabytes in a row make everything else wait that the disk has to do, for a second and more. Instead a piece is
written whenever the segment's second half has grown by as much, a little faster than it grows, so that the file is made
in time at any speed and a stream that rests has nothing written ahead.

    the segment fills ──▶ pieces, one after the other ──▶ made ──▶ taken by the next segment

The loop's thread says how far the segment is (`filled`, when it is `due`); pieces are the housekeeper's work. When one
cannot be written, because the disk is full or nearly, the stream does without and tries again in its next segment.
"""

import os
from collections.abc import Callable

from tidelog.storage.disk import Disk
from tidelog.storage.housekeeping import DISK_FULL, Housekeeper
from tidelog.storage.pool import POOL_TASKS, ZEROS_BYTES, Draft, FilePool
from tidelog.storage.segment import BLOCK_BYTES, SegmentShape, active_name
from tidelog.storage.space import Space

PIECE_BYTES = ZEROS_BYTES  # a millisecond or two of the disk's time
HASTE = 1.25  # how much faster the file is made than the segment fills

NEVER = 1 << 62


class SpareMaker:
    """What makes the spares of all streams of a folder."""

    def __init__(
        self,
        disk: Disk,
        pool: FilePool,
        housekeeper: Housekeeper,
        space: Space,
        shape: SegmentShape,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        self.shape = shape
        self._disk = disk
        self._pool = pool
        self._housekeeper = housekeeper
        self._space = space
        self._on_loop = on_loop

    def write(self, draft: Draft, size: int, path: str, made: Callable[[], None], failed: Callable[[], None]) -> None:
        """Have the draft written up to `size`; when that is all of it, have it placed at `path`."""
        folder = os.path.dirname(path)

        def piece() -> None:
            # The writer may not have come to a stream that is very new.
            if not self._disk.exists(folder) or not self._space.has_room_for(self.shape.file_bytes - draft.size):
                give_up()
                return
            try:
                if self._pool.extend(draft, size, self.shape):
                    self._pool.place(draft, path)
                    self._on_loop(made)
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                give_up()

        def give_up() -> None:
            self._pool.discard(draft)  # half a file must not keep its room from those who need it now
            self._on_loop(failed)

        self._housekeeper.submit(folder, piece)

    def abandon(self, draft: Draft) -> None:
        self._housekeeper.submit(POOL_TASKS, lambda: self._pool.put_back(draft))


class Spare:
    def __init__(self, folder: str, maker: SpareMaker, take_sequence: Callable[[], int], sequence: int | None) -> None:
        """`sequence`: of a file that is made already."""
        self._folder = folder
        self._maker = maker
        self._take_sequence = take_sequence
        self._sequence = sequence
        self._draft: Draft | None = None
        self._draft_sequence = 0
        self._asked_bytes = 0  # of the draft
        self._half = maker.shape.data_bytes_max // 2
        self.due = NEVER if sequence is not None else self._half
        """`filled` has nothing to do before the segment is longer than this."""

    def filled(self, length: int) -> None:
        """The active segment has so many bytes."""
        if length <= self.due:
            return
        whole = self._maker.shape.file_bytes
        ahead = int((length - self._half) * HASTE * whole / self._half) + PIECE_BYTES
        wanted = min(whole, ahead - ahead % BLOCK_BYTES)
        if self._draft is None:
            self._draft, self._draft_sequence, self._asked_bytes = Draft(), self._take_sequence(), 0
        if wanted > self._asked_bytes:
            self._asked_bytes = wanted
            path = os.path.join(self._folder, active_name(self._draft_sequence))
            draft = self._draft
            self._maker.write(draft, wanted, path, self._made, lambda: self._failed(draft))
        self.due = NEVER if wanted == whole else length + int(PIECE_BYTES * self._half / (HASTE * whole))

    def take(self) -> int | None:
        """A segment begins: the sequence of the file that is made for it, if there is one."""
        sequence, self._sequence = self._sequence, None
        complete = self._draft is not None and self._asked_bytes == self._maker.shape.file_bytes
        self.due = NEVER if complete else self._half  # it comes late, and is for the next one
        return sequence

    def abandon(self) -> None:
        """The stream is deleted."""
        self.due = NEVER
        if self._draft is not None:
            self._maker.abandon(self._draft)
            self._draft = None

    def _made(self) -> None:
        self._sequence, self._draft, self.due = self._draft_sequence, None, NEVER

    def _failed(self, draft: Draft) -> None:
        """Told for every piece that was asked for; by then there may be another one."""
        if self._draft is draft:
            self._draft, self.due = None, NEVER
