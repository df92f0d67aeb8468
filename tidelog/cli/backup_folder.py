"""A backup on disk: a folder that describes itself, and is made of record batches as they lie in the log.

    <folder>/
      backup.json                                 {"format": 1, "cluster_id": …, "checksum": …}
      lock                                        held (flock) by the backup that works here; empty
      groups.json                                 consumer groups' positions, when it was taken with them
      streams/<stream>/manifest.json              what the backup holds of the stream (`Manifest`)
      streams/<stream>/<partition>/<20 digits>-<20 digits>.log     a closed segment: offsets [first, second)
      streams/<stream>/<partition>/<20 digits>-<20 digits>.tail    what was behind the last closed segment, likewise
      streams/<stream>/<partition>/*.part         a file that is being copied; not part of the backup yet

A manifest names the files of each partition in order, with bounds, size and CRC-32C. What it does not name does not
belong to the backup. JSON files and files of batches are written under another name, synced, and renamed, and the
manifest comes after the files it names: a backup that is interrupted anywhere leaves what was there before intact, and
a partition changes only when it was copied up to its high watermark.

Invariants of a partition: its files follow each other without a gap; every batch is intact and follows the one before
it; the first begins at or before `start_offset`, the last ends at `next_offset`.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crc32c import crc32c

from tidelog.cli import CommandError
from tidelog.wire.batch import HEADER_BYTES, BatchHeader, CorruptBatchError, check_batch, read_frame

FORMAT = 1
LENGTH_END = 12
BATCH_BYTES_MAX = 128 << 20  # a length beyond this is damage, and not a batch
READ_BYTES = 1 << 20


class BackupDamaged(CommandError):
    """What the folder holds is not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Run:
    """One file of batches: offsets [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    bytes: int
    crc: str  # CRC-32C of the whole file, eight hex digits
    closed: bool  # a closed segment, which is never read again; else the tail, which the next backup replaces

    @property
    def name(self) -> str:
        return f"{self.base_offset:020}-{self.next_offset:020}.{'log' if self.closed else 'tail'}"


@dataclass(frozen=True, slots=True)
class PartitionBackup:
    partition: int
    stream: int  # the number of the log stream it was copied from
    start_offset: int  # the earliest offset that clients could read
    next_offset: int  # the high watermark when it was taken
    runs: tuple[Run, ...] = ()
    ahead: tuple[Run, ...] = ()  # closed segments copied by a backup that has not ended: they follow the closed runs

    @property
    def closed(self) -> tuple[Run, ...]:
        """What need not be read again."""
        return (*(run for run in self.runs if run.closed), *self.ahead)


@dataclass(frozen=True, slots=True)
class Manifest:
    stream: str
    topic_id: str
    taken: str  # when the last backup ended, ISO 8601
    complete: bool  # whether every partition was copied up to its watermark
    configs: dict[str, str]
    partitions: tuple[PartitionBackup, ...] = field(default=())

    def with_partition(self, changed: PartitionBackup) -> "Manifest":
        others = [each for each in self.partitions if each.partition != changed.partition]
        return replace(self, partitions=tuple(sorted([*others, changed], key=lambda each: each.partition)))

    def partition(self, number: int) -> PartitionBackup | None:
        return next((each for each in self.partitions if each.partition == number), None)


class BackupFolder:
    def __init__(self, path: str) -> None:
        self.path = path

    # --- the whole ---

    def open(self) -> dict[str, Any]:
        """What `backup.json` says, of a folder that is a backup."""
        if not os.path.isdir(self.path):
            raise CommandError(f"there is no folder {self.path}")
        about = self._load(os.path.join(self.path, "backup.json"))
        if about is None:
            raise CommandError(f"{self.path} is not a backup: it has no backup.json")
        return about

    def create(self, cluster_id: str) -> None:
        """Make the folder, or go on in one that holds a backup of the same cluster."""
        try:
            os.makedirs(self.path, exist_ok=True)
            content = set(os.listdir(self.path)) - {"lock"}
        except OSError as error:
            raise CommandError(f"cannot write to {self.path}: {error.strerror}") from None
        if "backup.json" in content:
            known = self.open()["cluster_id"]
            if known != cluster_id:
                raise CommandError(f"{self.path} is a backup of cluster {known}, not of {cluster_id}: use another --to")
        elif content:
            raise CommandError(f"{self.path} is not empty and not a backup: use another --to")
        else:
            self.save("backup.json", {"cluster_id": cluster_id})

    @contextmanager
    def locked(self) -> Iterator[None]:
        with open(os.path.join(self.path, "lock"), "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(f"another backup works in {self.path}: wait until it has ended") from None
            yield

    def save(self, name: str, content: dict[str, Any]) -> None:
        content = {"format": FORMAT, **content}
        text = json.dumps({**content, "checksum": _checksum(content)}, ensure_ascii=False, indent=1)
        write_whole(os.path.join(self.path, name), text.encode() + b"\n")

    def load(self, name: str) -> dict[str, Any] | None:
        return self._load(os.path.join(self.path, name))

    def _load(self, path: str) -> dict[str, Any] | None:
        try:
            with open(path, "rb") as file:
                content = json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BackupDamaged(f"cannot read {path}: {error}") from None
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise BackupDamaged(f"{path} is damaged: its checksum is wrong")
        if content.get("format") != FORMAT:
            raise CommandError(f"{path} has format {content.get('format')}; this version reads {FORMAT}")
        return content

    # --- streams ---

    def streams(self) -> list[str]:
        folder = os.path.join(self.path, "streams")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return sorted(name for name in names if os.path.exists(os.path.join(folder, name, "manifest.json")))

    def manifest(self, stream: str) -> Manifest | None:
        content = self.load(os.path.join("streams", stream, "manifest.json"))
        if content is None:
            return None
        try:
            return Manifest(
                content["stream"],
                content["topic_id"],
                content["taken"],
                content["complete"],
                content["configs"],
                tuple(
                    PartitionBackup(
                        **{
                            **each,
                            "runs": tuple(Run(**run) for run in each["runs"]),
                            "ahead": tuple(Run(**run) for run in each["ahead"]),
                        }
                    )
                    for each in content["partitions"]
                ),
            )
        except (KeyError, TypeError) as error:
            raise BackupDamaged(f"the manifest of stream {stream} lacks {error}") from None

    def save_manifest(self, manifest: Manifest) -> None:
        self.save(os.path.join("streams", manifest.stream, "manifest.json"), asdict(manifest))

    def partition_folder(self, stream: str, partition: int) -> str:
        return os.path.join(self.path, "streams", stream, str(partition))

    def run_path(self, stream: str, partition: int, run: Run) -> str:
        return os.path.join(self.partition_folder(stream, partition), run.name)

    def clean(self, stream: str, held: PartitionBackup, keep: str | None = None) -> None:
        """Remove what the manifest does not name, except for the unfinished file that is to be continued."""
        folder = self.partition_folder(stream, held.partition)
        wanted = {run.name for run in (*held.runs, *held.ahead)} | {keep}
        for name in os.listdir(folder):
            if name not in wanted and re.fullmatch(r"[\d-]+\.(log|tail|part)", name):
                os.unlink(os.path.join(folder, name))

    def batches(self, stream: str, held: PartitionBackup, since: int = 0) -> Iterator[tuple[BatchHeader, bytes]]:
        """The records' batches from the one that holds offset `since` on, each checked; entries of our own left out."""
        for run in held.runs:
            if run.next_offset > since:
                path = self.run_path(stream, held.partition, run)
                for header, batch in read_run(path, run.base_offset):
                    if not header.is_ours and header.next_offset > since:
                        yield header, batch


def _checksum(content: dict[str, Any]) -> str:
    return f"{crc32c(json.dumps(content, sort_keys=True).encode()):08x}"


# --- files ------------------------------------------------------------------------------------------------------------


def write_whole(path: str, data: bytes) -> None:
    """All of it or nothing, and durable."""
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    rename(temporary, path)


def rename(old: str, new: str) -> None:
    os.replace(old, new)
    sync_folder(os.path.dirname(new))


def sync_folder(path: str) -> None:
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_run(path: str, base_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch of a file, checked: intact, and following the one before it."""
    expected = base_offset
    position = 0
    try:
        with open(path, "rb", buffering=READ_BYTES) as file:
            while head := file.read(LENGTH_END):
                try:
                    size = LENGTH_END + read_frame(head)[1]
                    if not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
                        raise CorruptBatchError(f"it claims {size} bytes")
                    batch = head + file.read(size - LENGTH_END)
                    header = check_batch(batch)
                    if header.base_offset != expected:
                        raise CorruptBatchError(f"it has offset {header.base_offset}, {expected} is due")
                except CorruptBatchError as error:
                    raise BackupDamaged(f"{path} is damaged: batch at position {position}: {error}") from None
                yield header, batch
                expected = header.next_offset
                position += size
    except OSError as error:
        raise BackupDamaged(f"cannot read {path}: {error.strerror}") from None


def measure_run(path: str, base_offset: int, closed: bool) -> Run:
    """What a file holds, every batch of it checked."""
    crc = size = 0
    end = base_offset
    for header, batch in read_run(path, base_offset):
        crc = crc32c(batch, crc)
        size += len(batch)
        end = header.next_offset
    return Run(base_offset, end, size, f"{crc:08x}", closed)


def check_partition(folder: BackupFolder, stream: str, held: PartitionBackup) -> Iterator[int]:
    """Read all of a partition and check it against its manifest; gives the bytes of each file that was in order."""
    expected = None
    for run in held.runs:
        path = folder.run_path(stream, held.partition, run)
        if expected is not None and run.base_offset != expected:
            raise BackupDamaged(f"{path} begins at {run.base_offset}, {expected} is due")
        found = measure_run(path, run.base_offset, run.closed)
        if found != run:
            raise BackupDamaged(f"{path} is not what the manifest says: {_difference(found, run)}")
        expected = run.next_offset
        yield run.bytes
    if held.runs and not held.runs[0].base_offset <= held.start_offset:
        raise BackupDamaged(f"{stream}:{held.partition} begins behind its start offset {held.start_offset}")
    if (held.start_offset if expected is None else expected) != held.next_offset:
        raise BackupDamaged(f"{stream}:{held.partition} ends at {expected}, not at {held.next_offset}")


def _difference(found: Run, said: Run) -> str:
    names = ("next_offset", "bytes", "crc")
    return ", ".join(
        f"{name} is {getattr(found, name)}, not {getattr(said, name)}"
        for name in names
        if getattr(found, name) != getattr(said, name)
    )
