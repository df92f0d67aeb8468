"""What the tests of this folder build their worlds from: topics, rows in, rows out."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # pyright: ignore[reportPrivateImportUsage]

from tidelog.spark.cluster import Cluster
from tidelog.spark.fetch import FetchOrigin
from tidelog.spark.kernel.decode import RECORD_SCHEMA, Place, decode_records
from tidelog.spark.kernel.options import Address, Subscription, WriteOptions, write_options
from tidelog.spark.kernel.ranges import OffsetRange

ANSWER_S_MAX = 30.0

_numbers = itertools.count()


class Log:
    """A cluster under test, Tidelog's or Kafka's."""

    def __init__(self, bootstrap: str, replicas: int) -> None:
        self.bootstrap = bootstrap
        self.replicas = replicas
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    @property
    def addresses(self) -> list[Address]:
        return [(host, int(port)) for host, _, port in (a.rpartition(":") for a in self.bootstrap.split(","))]

    def cluster(self) -> Cluster:
        return Cluster(self.addresses, request_s=10.0)

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None, name: str | None = None) -> str:
        """A new topic, with a name of its own. Its records may be as old as a test likes."""
        made = name or f"topic-{next(_numbers)}"
        new = NewTopic(made, partitions, self.replicas, config={"retention.ms": "-1", **(config or {})})
        self._admin.create_topics([new], request_timeout=ANSWER_S_MAX)[made].result(ANSWER_S_MAX)
        return made

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(ANSWER_S_MAX)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(ANSWER_S_MAX)

    def trim(self, topic: str, partition: int, offset: int) -> None:
        place = TopicPartition(topic, partition, offset)
        self._admin.delete_records([place])[place].result(ANSWER_S_MAX)

    def leader(self, topic: str, partition: int = 0) -> int:
        return self._admin.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic].partitions[partition].leader

    def rows(self, topic: str) -> dict[int, list[dict[str, object]]]:
        """All there is, by partition."""
        with self.cluster() as cluster:
            places = cluster.partitions(Subscription(topics=(topic,)))
            starts, ends = cluster.earliest(places), cluster.latest(places)
            return {
                place[1]: list(rows_between(cluster, OffsetRange(*place, starts[place], ends[place])))
                for place in places
            }

    def values(self, topic: str) -> dict[int, list[bytes]]:
        return {partition: [row["value"] for row in rows] for partition, rows in self.rows(topic).items()}  # type: ignore[misc]

    def write_options(self, **more: str) -> WriteOptions:
        return write_options({"kafka.bootstrap.servers": self.bootstrap, **more})


def rows_between(cluster: Cluster, wanted: OffsetRange) -> Iterable[dict[str, object]]:
    for run in FetchOrigin(cluster, 1 << 20, fail_on_data_loss=True).runs(wanted):
        place = Place(wanted.topic, wanted.partition, run.start, wanted.end)
        for batch in decode_records(run.data, place, RECORD_SCHEMA):
            yield from batch.to_pylist()


def frame(values: Sequence[bytes], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), *columns.values()], names=["value", *columns])


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"row-%06d" % number for number in range(begin, end)]
