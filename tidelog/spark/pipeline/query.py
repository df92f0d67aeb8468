"""One streaming query from a PikiwiDB source into the sink, from where its commit record ends.

The sink's commit record is the truth: a query always begins at the offsets that it has, in a Spark checkpoint that is
thrown away with the query. So there is nothing of Spark's to repair after a crash, a power cut or an upgrade. A batch
that was written in part and not committed is built again from the same place on; it is at least as long as before
(the limits are fixed, a WAL only grows), so the sink finds every row that it has written already and goes on behind.
"""

import json
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from tidelog.spark import commit_record
from tidelog.spark.commit_record import CommitRecord
from tidelog.spark.message_sink import MessageSink
from tidelog.spark.pipeline.errors import PipelineStateError, SparkUnavailable
from tidelog.spark.pipeline.telling import Counts

POLL_S = 0.1
WORDS_MAX = 1000  # characters of a failure that are told

_PYTHON_ERROR = re.compile(r"^(?!java|org\.|pyspark)(?:\w+\.)*[A-Z]\w*: (.*\S)", re.MULTILINE)
_QUERY = "=== Streaming Query ==="  # and what follows in Spark's text is about the query, not what happened to it

End = Literal["stopped", "over", "complete"]
OnCommit = Callable[[CommitRecord, dict[str, Any], bool], None]
"""Gets the record, its offsets, and whether the query that runs has made it."""


@dataclass(frozen=True, slots=True)
class Query:
    """What to run. `commits` is the folder of its commit record; `spark_checkpoint` is emptied."""

    name: str
    source: str
    options: Mapping[str, str]
    brokers: str
    event_bytes_max: int
    commits: Path
    spark_checkpoint: Path
    ends: bool = False
    """Whether it ends when all there is was delivered."""


def committed(folder: Path) -> tuple[CommitRecord | None, dict[str, Any] | None]:
    """The record in a folder, and the offsets up to which everything is delivered."""
    record = commit_record.load(folder)
    if record is None or record.batch_id < 0:
        return record, None
    if len(record.source_offsets) != 1:
        raise PipelineStateError(f"{folder}: the commit record does not say how far its last batch reached")
    return record, json.loads(record.source_offsets[0])


def counts(record: CommitRecord, topic: str) -> Counts:
    """What became of everything that is delivered; what is not in the topic is among its dead letters."""
    found: Counter[bool] = Counter()
    for lane in record.lanes.values():
        for (name, _), written in lane.items():
            found[name == topic] += written.rows
    return Counts(found[True], record.left_out, found[False])


def run(
    spark: SparkSession,
    query: Query,
    stop: threading.Event,
    is_over: Callable[[], bool],
    on_commit: OnCommit,
    on_turn: Callable[[], None],
) -> End:
    """Until it is told to stop, is over (replaced by something else), or complete; raises what it failed with.

    `on_commit` is called for every commit that is seen, and told whether it is this query's: the one that was there
    before is seen too. What `on_turn` raises ends the query.
    """
    try:
        return _run(spark, query, stop, is_over, on_commit, on_turn)
    except (Py4JNetworkError, ConnectionError) as gone:
        raise SparkUnavailable("Spark's JVM does not answer: it has ended, or was killed") from gone


def _run(
    spark: SparkSession,
    query: Query,
    stop: threading.Event,
    is_over: Callable[[], bool],
    on_commit: OnCommit,
    on_turn: Callable[[], None],
) -> End:
    before, _ = committed(query.commits)
    generation_before = -1 if before is None else before.generation
    shutil.rmtree(query.spark_checkpoint, ignore_errors=True)
    reader = spark.readStream.format(query.source).options(**query.options)
    writer = reader.load().writeStream.format(MessageSink.name()).queryName(query.name).options(
        **{
            "kafka.bootstrap.servers": query.brokers,
            "kafka.max.request.size": str(query.event_bytes_max),
            "commitLocation": str(query.commits),
            "checkpointLocation": f"file://{query.spark_checkpoint}",  # whatever Spark's own file system is
        }
    )  # fmt: skip
    running = (writer.trigger(availableNow=True) if query.ends else writer).start()
    seen = -1
    try:
        while True:
            active = running.isActive
            record, offsets = committed(query.commits)
            if record is not None and offsets is not None and record.generation != seen:
                seen = record.generation
                on_commit(record, offsets, record.generation > generation_before)
            on_turn()
            if not active:
                failure = running.exception()
                if failure is not None:
                    raise failure
                return "complete" if query.ends else "stopped"
            if is_over():
                return "over"
            if stop.wait(POLL_S):
                return "stopped"
    finally:
        running.stop()
        shutil.rmtree(query.spark_checkpoint, ignore_errors=True)


def last_words(failure: Exception) -> str:
    """What a user should read of a failed query: the Python error in it, else its beginning."""
    text = str(failure).partition(_QUERY)[0].strip() or repr(failure)
    errors = _PYTHON_ERROR.findall(text)
    return (errors[0] if errors else text.splitlines()[0])[:WORDS_MAX]
