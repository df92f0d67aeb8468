"""The sink's commit record: what a streaming query has written for good. It is the truth; Spark's checkpoint is not.

One small file, replaced as a whole (written aside, synced, renamed, the folder synced) at the end of each micro-batch,
so it is either that of the batch before or that of this one. Only the driver reads and writes it.

    {"format": 1, "identity": "…", "generation": 12, "begun_ms": …, "committed_ms": …,
     "epoch": 1, "query_id": "…", "batch_id": 11, "source_offsets": ["…"],
     "partition_counts": {"events": 4}, "lanes": {"0": {"events": {"3": [1500, 90210]}}}, "left_out": 12}

`identity` is made once, before the first row is written; the sink's producer ids follow from it, so it must outlive the
query. A lane is a task of Spark's, by number; it has written 1500 rows to partition 3, and its last row lies before
offset 90210. `partition_counts` are what the next batch takes a topic's partitions to be, so that a retry after a topic
has grown sends each row where the first attempt did. `epoch` counts the checkpoints (Spark's query ids): in a new
checkpoint folder batch numbers begin again at 0. `source_offsets` are the ends of what the batch has read, as Spark
logs them, so that a lost checkpoint can be replaced: they are the new query's `startingOffsets`. `left_out` counts what
the batches had besides rows, for a sink that knows (a pipeline's filter holds it back).
"""

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from tidelog.spark.errors import BadCommitRecord, BadOption
from tidelog.spark.kernel.offsets import Partition
from tidelog.spark.kernel.options import WriteOptions

FORMAT = 1
FILE = "commit.json"
FOLDER_IN_CHECKPOINT = "tidelog-sink"


@dataclass(frozen=True, slots=True)
class Written:
    """What a lane has written to a partition: how many rows, and the offset behind the last."""

    rows: int
    end_offset: int


Lane = Mapping[Partition, Written]


@dataclass(frozen=True, slots=True)
class LaneReport:
    """What a task did in one micro-batch."""

    number: int
    query_id: str
    generation: int
    written: Lane
    partition_counts: Mapping[str, int]
    skipped: bool = False
    """The batch was committed before: nothing was written."""
    left_out: int = 0
    """What the task had to look at and write no row for."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    identity: str
    begun_ms: int
    generation: int = 0
    committed_ms: int = 0
    epoch: int = 0
    query_id: str = ""
    batch_id: int = -1
    source_offsets: tuple[str, ...] = ()
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    lanes: Mapping[int, Lane] = field(default_factory=dict)
    left_out: int = 0

    def has(self, query_id: str, batch_id: int) -> bool:
        """Whether this micro-batch is committed already."""
        return query_id == self.query_id and batch_id <= self.batch_id

    @property
    def last_ms(self) -> int:
        return max(self.begun_ms, self.committed_ms)

    def after(
        self, batch_id: int, reports: Iterable[LaneReport], source_offsets: Iterable[str], now_ms: int
    ) -> "CommitRecord":
        """The record when this batch is committed too."""
        lanes = dict(self.lanes)
        counts = dict(self.partition_counts)
        query_id, left_out = self.query_id, self.left_out
        for report in reports:
            if report.generation != self.generation:
                raise BadCommitRecord(
                    f"the commit record has changed (generation {report.generation} to {self.generation}) while batch "
                    f"{batch_id} was written: give each query a commitLocation of its own"
                )
            query_id = report.query_id
            left_out += report.left_out
            lanes[report.number] = {**lanes.get(report.number, {}), **report.written}
            for topic, count in report.partition_counts.items():
                counts[topic] = max(count, counts.get(topic, 0))
        return replace(
            self,
            generation=self.generation + 1,
            committed_ms=now_ms,
            epoch=self.epoch + (query_id != self.query_id),
            query_id=query_id,
            batch_id=batch_id,
            source_offsets=tuple(source_offsets),
            partition_counts=counts,
            lanes=lanes,
            left_out=left_out,
        )


# --- the file ---------------------------------------------------------------------------------------------------------


def folder_of(options: WriteOptions) -> Path:
    """Where the record lies: as `commitLocation` says, else within the checkpoint."""
    if options.commit_location is not None:
        return _local(options.commit_location, "commitLocation")
    if options.checkpoint_location is None:
        raise BadOption("give checkpointLocation as an option of the query, or commitLocation: a folder of the driver")
    return _local(options.checkpoint_location, "checkpointLocation") / FOLDER_IN_CHECKPOINT


def _local(location: str, option: str) -> Path:
    scheme = urlparse(location).scheme
    if scheme not in {"", "file"}:
        raise BadOption(f"{option}: {location} is not on a local disk; give commitLocation, a folder of the driver")
    # As Spark reads it: what is behind the scheme is the path itself, not an encoded one.
    return Path("/" + location.partition(":")[2].lstrip("/") if scheme else location)


def load(folder: Path) -> CommitRecord | None:
    """The record in this folder, or None when there is none yet."""
    file = folder / FILE
    try:
        return _from_tree(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCommitRecord(f"{file} cannot be read ({error}): restore it, or begin with a new folder") from None


def load_or_begin(folder: Path, now_ms: int) -> CommitRecord:
    """The record in this folder; if there is none, a first one, which is on disk when this returns."""
    record = load(folder)
    if record is None:
        record = CommitRecord(identity=uuid.uuid4().hex, begun_ms=now_ms)
        save(folder, record)
    return record


def save(folder: Path, record: CommitRecord) -> None:
    """Replace the record; it is on stable storage when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{FILE}.new"
    with open(aside, "wb") as file:
        file.write(json.dumps(_to_tree(record)).encode())
        file.flush()
        os.fsync(file.fileno())
    aside.rename(folder / FILE)
    _sync_folder(folder)
    if record.generation == 0:  # the folder itself may be new
        _sync_folder(folder.parent)


def logged_source_offsets(options: WriteOptions, batch_id: int) -> tuple[str, ...]:
    """The end offsets that Spark has logged for this batch, a line a source; none when its log cannot be read here."""
    if options.checkpoint_location is None or urlparse(options.checkpoint_location).scheme not in {"", "file"}:
        return ()
    try:
        log = _local(options.checkpoint_location, "checkpointLocation") / "offsets" / str(batch_id)
        return tuple(log.read_text().splitlines()[2:])  # behind the version and Spark's own settings
    except OSError:
        return ()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_tree(record: CommitRecord) -> dict[str, Any]:
    lanes: dict[str, dict[str, dict[str, list[int]]]] = {}
    for number, lane in record.lanes.items():
        topics = lanes.setdefault(str(number), {})
        for (topic, partition), written in lane.items():
            topics.setdefault(topic, {})[str(partition)] = [written.rows, written.end_offset]
    return {
        "format": FORMAT,
        "identity": record.identity,
        "generation": record.generation,
        "begun_ms": record.begun_ms,
        "committed_ms": record.committed_ms,
        "epoch": record.epoch,
        "query_id": record.query_id,
        "batch_id": record.batch_id,
        "source_offsets": list(record.source_offsets),
        "partition_counts": dict(record.partition_counts),
        "lanes": lanes,
        "left_out": record.left_out,
    }


def _from_tree(tree: dict[str, Any]) -> CommitRecord:
    if tree["format"] != FORMAT:
        raise ValueError(f"format {tree['format']}; this version reads {FORMAT}")
    return CommitRecord(
        identity=tree["identity"],
        begun_ms=tree["begun_ms"],
        generation=tree["generation"],
        committed_ms=tree["committed_ms"],
        epoch=tree["epoch"],
        query_id=tree["query_id"],
        batch_id=tree["batch_id"],
        source_offsets=tuple(tree["source_offsets"]),
        partition_counts=tree["partition_counts"],
        lanes={
            int(number): {
                (topic, int(partition)): Written(*written)
                for topic, partitions in topics.items()
                for partition, written in partitions.items()
            }
            for number, topics in tree["lanes"].items()
        },
        left_out=tree.get("left_out", 0),  # records of before have none
    )
