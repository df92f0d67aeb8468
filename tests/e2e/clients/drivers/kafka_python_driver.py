"""kafka-python: version 3 as it is, and version 2.0.2 told that the broker is a Kafka 0.10.

The old one is given a second argument, the version it shall believe in (`0.10.1`). It then sends that release's
requests without asking what the broker can do, and messages in the format before record batches: what a client of
2016 does. Its admin client asks for ApiVersions in any case, so only producers and consumers are of that time.
"""

# The checker has stubs of version 2 only.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

import sys
import types

import cramjam
import kafka
import kafka.codec
import kafka.errors
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata
from stdio import Refused, decode, headers_of, record_to_json, serve

SEND_TIMEOUT_S = 40
ADMIN_COMMANDS = (
    "create_topic",
    "delete_topic",
    "list_topics",
    "describe_topic",
    "create_partitions",
    "alter_config",
    "describe_config",
    "delete_records",
    "list_groups",
    "describe_group",
    "delete_group",
    "group_offsets",
)
NOT_YET = "Kafka 0.10 had no such thing"
OLD_LACKS = {
    "headers": NOT_YET,
    "zstd": NOT_YET,
    "idempotence": NOT_YET,
    "static_members": NOT_YET,
    "fencing": NOT_YET,
    "record_batches": "Kafka 0.10 wrote messages of format 1",
    **dict.fromkeys(ADMIN_COMMANDS, "kafka-python 2.0.2's admin client asks for ApiVersions, which 0.10 did not"),
}


def provide_snappy():
    """kafka-python wants python-snappy, which is no more than this over cramjam, which the project has anyway."""
    if kafka.codec.snappy is None:
        kafka.codec.snappy = types.SimpleNamespace(
            compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
            decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
        )


class Consumer:
    def __init__(self, settings, spec):
        config = dict(settings)
        if spec["instance"]:
            config["group_instance_id"] = spec["instance"]
        if spec["group"]:
            config.update(session_timeout_ms=45000, heartbeat_interval_ms=300)
        self._consumer = KafkaConsumer(
            group_id=spec["group"],
            auto_offset_reset=spec["reset"],
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            **config,
        )
        if spec["topics"]:
            self._consumer.subscribe(spec["topics"])
            for topic in spec["topics"]:
                # Learn the partitions first. Version 3 joins without, joins again when it hears of them, and is stuck
                # for good when a poll ends during that second join.
                self._consumer.partitions_for_topic(topic)
            return
        starts = {TopicPartition(start["topic"], start["partition"]): start["at"] for start in spec["assign"]}
        self._consumer.assign(list(starts))
        for partition, at in starts.items():
            self._seek(partition, at)

    def _seek(self, partition, at):
        if at == "earliest":
            self._consumer.seek_to_beginning(partition)
        elif at == "latest":
            self._consumer.seek_to_end(partition)
        elif isinstance(at, dict):
            found = self._consumer.offsets_for_times({partition: at["time"]})[partition]
            if found is None:
                self._consumer.seek_to_end(partition)
            else:
                self._consumer.seek(partition, found.offset)
        else:
            self._consumer.seek(partition, at)

    def step(self, timeout_s):
        found = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [
            record_to_json(each.topic, each.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
            for batch in found.values()
            for each in batch
        ]

    def assignment(self):
        return [(each.topic, each.partition) for each in self._consumer.assignment()]

    def commit(self, offsets):
        if offsets is None:
            self._consumer.commit()
            return
        extra = [-1] * (len(OffsetAndMetadata._fields) - 2)  # version 3 added the leader's epoch
        chosen = {TopicPartition(*where): OffsetAndMetadata(offset, "", *extra) for where, offset in offsets.items()}
        self._consumer.commit(chosen)

    def committed(self, partition):
        return self._consumer.committed(TopicPartition(*partition))

    def close(self):
        self._consumer.close()


class Client:
    def __init__(self, bootstrap, believed_version=None):
        self._settings = {"bootstrap_servers": bootstrap}
        self._old = believed_version is not None
        self._believed_version = believed_version
        if believed_version is not None:
            self._settings["api_version"] = tuple(int(part) for part in believed_version.split("."))
        self._admin = None if self._old else Admin(bootstrap)

    def hello(self):
        name = f"kafka-python {kafka.__version__}"
        if not self._old:
            return {"client": name, "lacks": {"fencing": "kafka-python stops its heartbeat and only logs why"}}
        lacks = dict(OLD_LACKS)
        if self._believed_version == "0.10.0":
            lacks["offsets_by_time"] = "ListOffsets answered with exact offsets from 0.10.1 on"
        return {"client": f"{name} as of Kafka {self._believed_version}", "lacks": lacks}

    def refusal(self, error):
        if not isinstance(error, (KafkaError, AssertionError)):
            return None
        if type(error).__name__ == "NoOffsetForPartitionError":  # each version keeps it elsewhere
            return Refused(OffsetOutOfRangeError.errno, repr(error))
        code = getattr(error, "errno", -1)
        return Refused(code if code > 0 else None, repr(error))

    def __getattr__(self, command):
        if command in ADMIN_COMMANDS and self._admin is not None:
            return getattr(self._admin, command)
        raise AttributeError(command)

    def produce(self, topic, codec, idempotent, acks, records):
        config = dict(self._settings)
        if not self._old:
            config["enable_idempotence"] = idempotent
        if not idempotent:
            config["max_in_flight_requests_per_connection"] = 1  # else a retry may change the order
        producer = KafkaProducer(
            compression_type=None if codec == "none" else codec, acks=acks, retries=3, linger_ms=20, **config
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=decode(record["value"]),
                    key=decode(record["key"]),
                    partition=record["partition"],
                    timestamp_ms=record["timestamp"],
                    headers=headers_of(record),
                )
                for record in records
            ]
            return [self._result(future) for future in sent]
        finally:
            producer.close(timeout=5)

    def _result(self, future):
        try:
            metadata = future.get(timeout=SEND_TIMEOUT_S)
        except KafkaError as error:
            refused = self.refusal(error)
            assert refused is not None
            return {"error": refused.as_json()}
        return {"partition": metadata.partition, "offset": metadata.offset}

    def open(self, spec):
        return Consumer(self._settings, spec)

    def list_offsets(self, topic, partition, at):
        where = TopicPartition(topic, partition)
        consumer = KafkaConsumer(**self._settings)
        try:
            if at == "earliest":
                return {"offset": consumer.beginning_offsets([where])[where]}
            if at == "latest":
                return {"offset": consumer.end_offsets([where])[where]}
            found = consumer.offsets_for_times({where: at["time"]})[where]
            return {"offset": None if found is None else found.offset}
        finally:
            consumer.close()


def check(code, message=""):
    if code:
        raise Refused(code, message or "")


class Admin:
    """Of version 3, whose calls and answers differ from version 2's throughout."""

    def __init__(self, bootstrap):
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topic(self, topic, partitions, configs):
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        self._admin.create_topics({topic: wanted})

    def delete_topic(self, topic):
        self._admin.delete_topics([topic])

    def list_topics(self):
        return {"topics": self._admin.list_topics()}

    def describe_topic(self, topic):
        found = self._admin.describe_topics([topic])[0]
        check(found["error_code"])
        return {"partitions": len(found["partitions"])}

    def create_partitions(self, topic, count):
        self._admin.create_partitions({topic: count})

    def alter_config(self, topic, configs):
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)])

    def describe_config(self, topic):
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self._admin.describe_configs([asked], config_filter="all")["topic"][topic]
        return {"configs": {name: entry["value"] for name, entry in found.items()}}

    def delete_records(self, topic, partition, before):
        self._admin.delete_records({TopicPartition(topic, partition): before})

    def list_groups(self):
        return {"groups": [group["group_id"] for group in self._admin.list_groups()]}

    def describe_group(self, group):
        found = self._admin.describe_groups([group])[group]
        if found["error"]:
            raise Refused(None, found["error"])
        return {"state": found["group_state"], "members": len(found["members"])}

    def delete_group(self, group):
        outcome = self._admin.delete_groups([group])[group]
        if outcome != "OK":
            errors = vars(kafka.errors)  # the outcome is the name of the error's class
            raise Refused(errors[outcome].errno if outcome in errors else None, outcome)

    def group_offsets(self, group, topic, partition):
        where = TopicPartition(topic, partition)
        found = self._admin.list_group_offsets({group: [where]})[group].get(where)
        return {"offset": None if found is None or found.offset < 0 else found.offset}


if __name__ == "__main__":
    provide_snappy()
    serve(Client(*sys.argv[1:]))
