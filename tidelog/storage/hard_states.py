"""Terms and votes of all streams of a node, in one small journal: `votes`.

A vote must be durable before it is acted upon, and when a node dies thousands of streams vote at once. So all of them
append to one file, and one sync serves every vote of a group commit.

    header: magic 8, slots 4, CRC-32C 4, zeros up to 32
    slots of 32 bytes: stream 8 | term 8 | vote 4 (-1: none) | synced 4 | zero 4 | CRC-32C 4 of the 28 bytes before

The last intact slot of a stream counts. `synced` says how many slots were durable when this one was written: a broken
slot below the largest such number was durable once, so the node must not start; one above it is a write that never
finished. The file is replaced whole when it is full, and at every start: what the process before wrote and did not sync
can be read, but a power cut would still take it.
"""

import os
import struct
from typing import NamedTuple

from crc32c import crc32c

from tidelog import faults
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import CorruptDataError
from tidelog.storage.small_file import read_file, replace_file

FILE_NAME = "votes"
SLOT_BYTES = 32
SLOTS_MIN = 2047  # with the header: 64 KiB
SLOTS_PER_STREAM = 8

_MAGIC = b"TIDEVOT1"
_HEADER = struct.Struct(">8sI")
_SLOT = struct.Struct(">QQiII")
_CRC = struct.Struct(">I")
_EMPTY = bytes(SLOT_BYTES)
NO_VOTE = -1


class StoredVote(NamedTuple):
    term: int
    vote: int | None


class HardStates:
    """The journal: read at start, written by the writer's thread alone."""

    def __init__(self, disk: Disk, folder: str, *, new: bool) -> None:
        """`new`: the folder is being made, so that the file need not be there."""
        self._disk = disk
        self._path = os.path.join(folder, FILE_NAME)
        self._states: dict[int, StoredVote] = {}
        self._used = 0
        self._slots = 0
        self._synced = 0
        if disk.exists(self._path):
            self._load()
        elif not new:
            raise CorruptDataError(self._path, 0, "the journal of votes is missing")
        self._replace()  # a killed process may have written votes that it did not sync, and we take them for durable
        self._file: File = disk.open_write(self._path)

    def states(self) -> dict[int, StoredVote]:
        return dict(self._states)

    def write(self, states: dict[int, StoredVote]) -> None:
        """Make `states` durable."""
        if faults.ARMED:
            faults.hit("votes.before-write")
        self._states.update(states)
        if self._used + len(states) > self._slots:
            self._replace()
            self._file.close()
            self._file = self._disk.open_write(self._path)
            return
        position = (1 + self._used) * SLOT_BYTES
        self._file.write_at(position, [_encode_slot(stream, state, self._synced) for stream, state in states.items()])
        self._file.sync()
        self._used += len(states)
        self._synced = self._used
        if faults.ARMED:
            faults.hit("votes.after-sync")

    def forget(self, stream: int) -> None:
        """The stream is gone; its slots go when the file is next replaced."""
        self._states.pop(stream, None)

    def close(self) -> None:
        self._file.close()

    def _replace(self) -> None:
        slots = max(SLOTS_MIN, SLOTS_PER_STREAM * len(self._states))
        used = len(self._states)
        header = _HEADER.pack(_MAGIC, slots)
        header += _CRC.pack(crc32c(header))
        content = bytearray((1 + slots) * SLOT_BYTES)
        content[: len(header)] = header
        taken = b"".join(_encode_slot(stream, state, used) for stream, state in sorted(self._states.items()))
        content[SLOT_BYTES : SLOT_BYTES + len(taken)] = taken
        replace_file(self._disk, self._path, content)
        self._slots = slots
        self._used = self._synced = used

    def _load(self) -> None:
        content = read_file(self._disk, self._path)
        header = content[:SLOT_BYTES].ljust(SLOT_BYTES, b"\0")
        magic, slots = _HEADER.unpack_from(header)
        if magic != _MAGIC or _CRC.unpack_from(header, _HEADER.size)[0] != crc32c(header[: _HEADER.size]):
            raise CorruptDataError(self._path, 0, "this is no journal of votes, or its header is damaged")
        if len(content) != (1 + slots) * SLOT_BYTES:
            raise CorruptDataError(self._path, len(content), f"the file should have {slots} slots")
        broken: list[int] = []
        synced = used = 0
        for number in range(slots):
            slot = content[(1 + number) * SLOT_BYTES : (2 + number) * SLOT_BYTES]
            if slot == _EMPTY:
                continue
            if _CRC.unpack_from(slot, SLOT_BYTES - _CRC.size)[0] != crc32c(slot[: -_CRC.size]):
                broken.append(number)
                continue
            stream, term, vote, durable, _ = _SLOT.unpack_from(slot)
            self._states[stream] = StoredVote(term, None if vote == NO_VOTE else vote)
            synced = max(synced, durable)
            used = number + 1
        gaps = [number for number in range(used) if content[(1 + number) * SLOT_BYTES :][:SLOT_BYTES] == _EMPTY]
        for number in sorted(broken + gaps):
            if number < synced:
                raise CorruptDataError(self._path, (1 + number) * SLOT_BYTES, f"slot {number} is damaged")


def _encode_slot(stream: int, state: StoredVote, synced: int) -> bytes:
    vote = NO_VOTE if state.vote is None else state.vote
    content = _SLOT.pack(stream, state.term, vote, synced, 0)
    return content + _CRC.pack(crc32c(content))
