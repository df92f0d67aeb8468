"""`tidelog consume STREAM`: each record becomes a line on stdout.

A group's position is committed only for records that were written out, so that a reader that is killed sees some of
them again and misses none. Without a group nothing is committed and nobody else is disturbed.
"""

# pyright: reportPrivateImportUsage=false
# (confluent_kafka.admin documents these names as its API, but does not mark them as exported)

import argparse
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, BinaryIO

from tidelog.cli import CommandError
from tidelog.cli.client import (
    Bounds,
    Cluster,
    add_bootstrap,
    number_from,
    plain,
    refusal,
    refusals,
    seconds,
    settings,
    stream_name,
)
from tidelog.cli.output import standard_output
from tidelog.cli.record_lines import json_line, key_value_line, value_line

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

BATCH_RECORDS_MAX = 1000
POLL_S = 0.1
SILENCE_S_MAX = 30.0  # without a word from the cluster, when there must be one
SESSION_MS = 10_000  # a member that was killed holds up its group for this long
NO_GROUP = "tidelog-consume"  # librdkafka wants a name; nothing is committed under it
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Start = str | int | datetime


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("consume", help="write the records of a stream to stdout, a line a record")
    parser.add_argument("stream", type=stream_name)
    parser.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        type=_start,
        default="earliest",
        help="earliest, latest, an offset, or time:ISO8601 (UTC if it names no zone); default: earliest. "
        "With --group: where to begin when the group has no position yet",
    )
    parser.add_argument("--partition", metavar="P", type=number_from(0), help="read only this one (default: all)")
    parser.add_argument(
        "--group", metavar="G", type=plain, help="read as a member of this group, and commit what was written out"
    )
    parser.add_argument("--max", metavar="N", type=number_from(1), help="end after N records")
    parser.add_argument("--exit", action="store_true", help="end at the end of what is there now")
    parser.add_argument("--timeout", metavar="S", type=seconds, help="end when no record comes for S seconds")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--keys", action="store_true", help="print key, tab, value")
    form.add_argument("--json", action="store_true", help="print a JSON object a record; time is in milliseconds")
    add_bootstrap(parser)


def _start(text: str) -> Start:
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return int(text)
    kind, _, moment = text.partition(":")
    try:
        if kind == "time":
            parsed = datetime.fromisoformat(moment)
            return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not earliest, latest, an offset or time:ISO8601")


def run(options: argparse.Namespace) -> int:
    if options.group and (options.partition is not None or not isinstance(options.start, str)):
        raise CommandError("a group has its own partitions and positions: leave out --partition, --from OFFSET or time")
    cluster = Cluster(options.bootstrap)
    bounds = cluster.bounds(options.stream, cluster.partitions(options.stream, options.partition))
    first = None if options.group else _first_offsets(cluster, options.stream, bounds, options.start)
    reading = _Reading(options, cluster, {partition: held.latest for partition, held in bounds.items()}, first)
    with refusals(options.bootstrap, options.stream), standard_output() as out:
        try:
            reading.run(out)
            reading.commit()
        finally:
            reading.close()
    return 0


def _first_offsets(cluster: Cluster, stream: str, bounds: dict[int, Bounds], start: Start) -> dict[int, int]:
    from confluent_kafka.admin import OffsetSpec

    if isinstance(start, datetime):
        moment = OffsetSpec.for_timestamp((start - EPOCH) // timedelta(milliseconds=1))
        found = cluster.offsets(stream, list(bounds), moment)
        # -1: nothing is that young
        return {partition: bounds[partition].latest if offset < 0 else offset for partition, offset in found.items()}
    if isinstance(start, int):
        for partition, held in bounds.items():
            if not held.earliest <= start <= held.latest:
                raise CommandError(
                    f"offset {start} is not in partition {partition} of {stream}: it holds {held.earliest} to "
                    f"{held.latest}; choose another with --from, or one partition with --partition"
                )
        return dict.fromkeys(bounds, start)
    return {partition: held.earliest if start == "earliest" else held.latest for partition, held in bounds.items()}


class _Reading:
    """A consumer, and how far it has come."""

    def __init__(
        self, options: argparse.Namespace, cluster: Cluster, ends: dict[int, int], first: dict[int, int] | None
    ) -> None:
        """`ends` are the partitions' ends as we begin, `first` is where to begin; None: where the group stands."""
        from confluent_kafka import Consumer, TopicPartition

        self._options = options
        self._cluster = cluster
        self._line = json_line if options.json else key_value_line if options.keys else value_line
        self._written = 0
        self._ends = ends
        self._unfinished: set[int] | None = None  # partitions not yet read to their end; None: not assigned yet
        self._heard_at = time.monotonic()  # the last record, or end of a partition
        self._down_since: float | None = None
        self._consumer: Consumer = Consumer(
            settings(
                options.bootstrap,
                {
                    "group.id": options.group or NO_GROUP,
                    "session.timeout.ms": SESSION_MS,
                    "enable.auto.commit": bool(options.group),
                    "enable.auto.offset.store": False,
                    # Without a group: records that vanish under the reader are an error, not a gap.
                    "auto.offset.reset": options.start if options.group else "error",
                    "enable.partition.eof": True,
                    "error_cb": self._hear_error,
                },
            )
        )
        if first is None:
            self._consumer.subscribe([options.stream], on_assign=self._assigned, on_revoke=self._revoked)
        else:
            self._consumer.assign([TopicPartition(options.stream, *place) for place in first.items()])
            self._unfinished = {partition for partition, offset in first.items() if offset < self._ends[partition]}

    def _assigned(self, _consumer: "Consumer", places: "list[TopicPartition]") -> None:
        self._unfinished = {place.partition for place in places}

    def _revoked(self, _consumer: "Consumer", _places: "list[TopicPartition]") -> None:
        self._unfinished = None

    def _hear_error(self, error: "KafkaError") -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:
            self._down_since = time.monotonic()

    def run(self, out: BinaryIO) -> None:
        while not self._finished():
            written: dict[int, int] = {}
            for message in self._consumer.consume(BATCH_RECORDS_MAX, POLL_S):
                if self._options.max is not None and self._written == self._options.max:
                    break
                if self._take(message):
                    out.write(self._line(message))
                    self._written += 1
                    written[message.partition() or 0] = (message.offset() or 0) + 1
            out.flush()
            self._store(written)

    def _take(self, message: "Message") -> bool:
        """Whether it is a record to write out; notes when its partition has been read to the end."""
        error = message.error()
        if error is not None and not self._is_end(error):
            raise self._refusal(error)
        self._heard_at = time.monotonic()
        self._down_since = None
        if not self._options.exit:
            return error is None
        partition, offset = message.partition() or 0, message.offset() or 0
        end = self._ends.get(partition, 0)  # 0: a partition added since, of which nothing was there
        if self._unfinished is not None and (error is not None or offset + 1 >= end):
            self._unfinished.discard(partition)
        return error is None and offset < end

    @staticmethod
    def _is_end(error: "KafkaError") -> bool:
        from confluent_kafka import KafkaError

        return error.code() == KafkaError._PARTITION_EOF

    def _refusal(self, error: "KafkaError") -> CommandError:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return CommandError(
                f"the next records of {self._options.stream} were removed meanwhile: go on with --from earliest"
            )
        return refusal(error, self._options.bootstrap, self._options.stream)

    def _finished(self) -> bool:
        options, now = self._options, time.monotonic()
        if options.max is not None and self._written >= options.max:
            return True
        if options.exit and self._unfinished is not None and not self._unfinished:
            return True
        if self._down_since is not None and now - self._down_since > SILENCE_S_MAX:
            self._down_since = None
            self._cluster.check_reachable()
        wait_s = options.timeout or (SILENCE_S_MAX if options.exit else None)
        if wait_s is None or now - self._heard_at < wait_s:
            return False
        self._cluster.check_reachable()  # silence is no end when nobody is there to speak
        if options.exit:
            raise CommandError(f"no record of {options.stream} for {wait_s:g} s, and the end is not reached")
        if options.max is not None:
            raise CommandError(
                f"no record of {options.stream} for {wait_s:g} s, after {self._written} of {options.max}"
            )
        return True

    def _store(self, next_offsets: dict[int, int]) -> None:
        """Let the group's position move past what was written out."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        if not self._options.group or not next_offsets:
            return
        for place in next_offsets.items():
            try:
                self._consumer.store_offsets(offsets=[TopicPartition(self._options.stream, *place)])
            except KafkaException as exception:
                if exception.args[0].code() != KafkaError._STATE:  # another member has it now, and will read it again
                    raise

    def commit(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if not self._options.group:
            return
        try:
            committed = self._consumer.commit(asynchronous=False)
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError._NO_OFFSET:  # nothing was written out
                raise
            return
        for place in committed or []:
            if place.error is not None:
                raise KafkaException(place.error)

    def close(self) -> None:
        """Leave the group. This commits too, after Ctrl-C or a closed pipe, but does not say if it failed."""
        self._consumer.close()
