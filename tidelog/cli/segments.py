"""One partition copied into a backup: closed segments as files, the rest fetched.

Replicas cut their logs into segments at different places, so a segment may begin before what the backup has ends: then
what is new of it is fetched by offset instead. Only what is committed is copied (a closed segment may end behind the
high watermark), so whatever replica a byte comes from, it is the same byte.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

from tidelog.cli import CommandError
from tidelog.cli.admin import Admin, PartitionRow, Refused, reason
from tidelog.cli.backup_folder import (
    BackupFolder,
    Manifest,
    PartitionBackup,
    Run,
    measure_run,
    rename,
)
from tidelog.cli.link import NotTidelog, Unreachable
from tidelog.cli.raw_log import fetch, leader_of
from tidelog.wire.batch import CorruptBatchError, check_batch, split_batches
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import ReadSegmentRequest

LOG_PART = 0

Read = Callable[[str, int], int]
"""Told of the place and bytes of each piece that was read; waits if need be, and says how many may be read at once."""


class PartitionCopy:
    """`run` may be called again after it failed: it goes on."""

    def __init__(self, admin: Admin, folder: BackupFolder, manifest: Manifest, number: int, read: Read) -> None:
        self._admin = admin
        self._folder = folder
        self._manifest = manifest
        self._number = number
        self._read = read
        self._place = f"{manifest.stream}:{number}"

    def run(self) -> Manifest:
        row = leader_of(self._admin, self._manifest.stream, self._number)
        node, listing = self._listing(row)
        held = self._held(row, listing)
        for segment in self._wanted(listing, held):
            held = self._take_segment(node, row, segment, held)
        self._take_tail(row, listing["high_watermark"], held)
        return self._manifest

    def _listing(self, row: PartitionRow) -> tuple[int, Any]:
        """The segments of the leader, or of another replica when it does not answer."""
        failure: CommandError = CommandError(f"{row.name} has no replica that answers")
        for node in dict.fromkeys((row.leader, *row.voters, *row.replicas)):
            try:
                return node, self._admin.call_node(node, "segments", topic=row.topic, partition=row.partition)
            except NotTidelog:
                raise
            except (Unreachable, Refused) as error:
                failure = error
        raise failure

    def _held(self, row: PartitionRow, listing: Any) -> PartitionBackup:
        """What the backup has already, cleared of what an interrupted run left behind."""
        held = self._manifest.partition(self._number)
        if held is None:
            start = listing["start_offset"]
            held = PartitionBackup(self._number, row.stream, start, start)
            self._save(held)
        if held.next_offset < listing["start_offset"]:
            raise CommandError(
                f"the backup ends at {held.next_offset}, and what follows up to {listing['start_offset']} is removed "
                f"from the stream: back up into another folder"
            )
        return held

    @staticmethod
    def _wanted(listing: Any, held: PartitionBackup) -> Iterator[Any]:
        end = held.closed[-1].next_offset if held.closed else held.start_offset
        for segment in listing["segments"]:
            committed = segment["next_offset"] <= listing["high_watermark"]
            new = segment["next_offset"] > end
            if committed and new and segment["base_offset"] < segment["next_offset"]:
                yield segment

    # --- closed segments ---

    def _take_segment(self, node: int, row: PartitionRow, segment: Any, held: PartitionBackup) -> PartitionBackup:
        base, end, length = segment["base_offset"], segment["next_offset"], segment["length"]
        have = held.closed[-1].next_offset if held.closed else held.start_offset
        if base > have:
            raise CommandError(f"{self._place} has no segment from {have} on, the next begins at {base}")
        if held.closed and base < have:
            base, part = have, f"{have:020}-{end:020}.part"
            self._folder.clean(row.topic, held)
            path = os.path.join(self._folder.partition_folder(row.topic, row.partition), part)
            self._fetch_into(path, row, base, end)
        else:
            part = f"{base:020}-{end:020}-{segment['first_index']}-{length}.part"
            self._folder.clean(row.topic, held, keep=part)
            path = os.path.join(self._folder.partition_folder(row.topic, row.partition), part)
            self._copy_into(path, node, row, segment)
        return self._add(held, path, Run(base, end, 0, "", True))

    def _copy_into(self, path: str, node: int, row: PartitionRow, segment: Any) -> None:
        """All of the segment's file, from where an earlier run was interrupted."""
        length = segment["length"]
        with open(path, "ab") as file:
            if file.tell() > length:
                file.truncate(0)
            position = file.tell()
            piece = self._read(self._place, 0)
            while position < length:
                request = ReadSegmentRequest(
                    stream=row.stream,
                    first_index=segment["first_index"],
                    part=LOG_PART,
                    position=position,
                    length=min(piece, length - position),
                )
                answer = self._admin.ask_node(node, request)
                if answer.error_code:
                    raise Refused(answer.error_code, f"{self._place}: {reason(answer.error_code)}")
                if not answer.data:
                    raise CommandError(f"node {node} ends the segment of {length} bytes at {position}")
                file.write(answer.data)
                position += len(answer.data)
                piece = self._read(self._place, len(answer.data))
            _sync(file)

    # --- by offset ---

    def _take_tail(self, row: PartitionRow, end: int, held: PartitionBackup) -> None:
        base = held.closed[-1].next_offset if held.closed else held.start_offset
        if end > base:
            self._folder.clean(row.topic, held)
            path = os.path.join(self._folder.partition_folder(row.topic, row.partition), f"{base:020}-{end:020}.part")
            first = self._fetch_into(path, row, base, end)
            held = self._add(held, path, Run(first, end, 0, "", False))
        else:
            held = replace(held, next_offset=base, runs=held.closed, ahead=())
            self._save(held)
        self._folder.clean(row.topic, held)

    def _fetch_into(self, path: str, row: PartitionRow, base: int, end: int) -> int:
        """Batches with the offsets [base, end); the first may begin before `base` when there is nothing before it."""
        offset, first = base, None
        with open(path, "wb") as file:
            while offset < end:
                found = fetch(self._admin, row.leader, row.topic, row.partition, offset)
                if not found.records:
                    raise Refused(
                        ErrorCode.OFFSET_NOT_AVAILABLE,
                        f"{self._place} gives nothing at {offset}, although it ends at {end}",
                    )
                for batch in _batches(found.records):
                    header = check_batch(batch)
                    if header.is_ours or header.next_offset <= offset:
                        continue
                    if header.base_offset > offset or (first is not None and header.base_offset != offset):
                        raise CommandError(f"{self._place} gives {header.base_offset} at {offset}")
                    if offset >= end:
                        break
                    first = header.base_offset if first is None else first
                    file.write(batch)
                    offset = header.next_offset
                self._read(self._place, len(found.records))
            if offset != end:
                raise CommandError(f"{self._place}: offset {end} is within a batch that ends at {offset}")
            _sync(file)
        return base if first is None else first

    # --- the manifest ---

    def _add(self, held: PartitionBackup, path: str, expected: Run) -> PartitionBackup:
        """The file at `path` holds what is expected: it becomes a part of the backup, behind the closed ones."""
        try:
            run = measure_run(path, expected.base_offset, expected.closed)
        except CommandError:
            os.unlink(path)  # or it would be continued for ever
            raise
        if run.next_offset != expected.next_offset:
            os.unlink(path)
            raise CommandError(f"{self._place}: a copy ends at {run.next_offset}, not at {expected.next_offset}")
        rename(path, self._folder.run_path(self._manifest.stream, self._number, run))
        if run.closed:
            changed = replace(held, ahead=(*held.ahead, run))
        else:
            changed = replace(held, next_offset=run.next_offset, runs=(*held.closed, run), ahead=())
        self._save(changed)
        return changed

    def _save(self, changed: PartitionBackup) -> None:
        self._manifest = self._manifest.with_partition(changed)
        self._folder.save_manifest(self._manifest)


def _batches(records: Any) -> Iterator[bytes]:
    """Whole batches; what a limit cut off is asked for again."""
    view = memoryview(records)
    try:
        for position, size in split_batches(view):
            yield bytes(view[position : position + size])
    except CorruptBatchError:
        return


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
