"""confluent-kafka, which is librdkafka."""

# Its hints say that the names of its documentation are private, and that headers must be of every type at once.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false

import sys

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from stdio import Refused, decode, headers_of, record_to_json, serve

REQUEST_TIMEOUT_S = 30
OFFSET_NAMES = {"earliest": confluent_kafka.OFFSET_BEGINNING, "latest": confluent_kafka.OFFSET_END}
RESET_NAMES = {"earliest": "earliest", "latest": "latest", "none": "error"}


def refused(error):
    code = error.code()
    if code == KafkaError._AUTO_OFFSET_RESET:  # what librdkafka makes of "out of range" under auto.offset.reset=error
        code = KafkaError.OFFSET_OUT_OF_RANGE
    if code == KafkaError._FATAL and "Static consumer fenced" in error.str():  # the cause is only in the text
        code = KafkaError.FENCED_INSTANCE_ID
    return Refused(code if code > 0 else None, f"{error.name()}: {error.str()}")


class Consumer:
    def __init__(self, bootstrap, spec):
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": spec["group"] or "unused",  # librdkafka wants one also where no group is joined
            "auto.offset.reset": RESET_NAMES[spec["reset"]],
            "enable.auto.commit": False,
            "session.timeout.ms": 45000,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        if spec["instance"]:
            config["group.instance.id"] = spec["instance"]
        self._consumer = confluent_kafka.Consumer(config)
        if spec["topics"]:
            self._consumer.subscribe(spec["topics"])
        else:
            # Learn the leaders first: librdkafka that has none at `assign` looks again only after half a second.
            for topic in {start["topic"] for start in spec["assign"]}:
                self._consumer.list_topics(topic, REQUEST_TIMEOUT_S)
            self._consumer.assign([self._start(start) for start in spec["assign"]])

    def _start(self, start):
        at = start["at"]
        if isinstance(at, dict):
            asked = TopicPartition(start["topic"], start["partition"], at["time"])
            return self._consumer.offsets_for_times([asked], REQUEST_TIMEOUT_S)[0]
        return TopicPartition(start["topic"], start["partition"], OFFSET_NAMES.get(at, at))

    def step(self, timeout_s):
        records = []
        for message in self._consumer.consume(500, timeout_s):
            error = message.error()
            if error is not None:
                raise refused(error)
            records.append(
                record_to_json(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    message.headers(),
                )
            )
        return records

    def assignment(self):
        return [(each.topic, each.partition) for each in self._consumer.assignment()]

    def commit(self, offsets):
        if offsets is None:
            self._consumer.commit(asynchronous=False)
        else:
            chosen = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
            self._consumer.commit(offsets=chosen, asynchronous=False)

    def committed(self, partition):
        found = self._consumer.committed([TopicPartition(*partition)], REQUEST_TIMEOUT_S)[0]
        if found.error is not None:
            raise refused(found.error)
        return found.offset if found.offset >= 0 else None

    def close(self):
        self._consumer.close()


class Client:
    def __init__(self, bootstrap):
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def hello(self):
        version = f"{confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}"
        return {"client": f"confluent-kafka {version}", "lacks": {}}

    def refusal(self, error):
        return refused(error.args[0]) if isinstance(error, KafkaException) else None

    def produce(self, topic, codec, idempotent, acks, records):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": acks,
                "linger.ms": 20,  # so that records share a batch, and compression has something to do
                "delivery.timeout.ms": 40000,
                "max.in.flight": 5 if idempotent else 1,  # else a retry may change the order
            }
        )
        results = [{}] * len(records)

        def delivered(place):
            def note(error, message):
                if error is None:
                    results[place] = {"partition": message.partition(), "offset": message.offset()}
                else:
                    results[place] = {"error": refused(error).as_json()}

            return note

        for place, record in enumerate(records):
            stamp = {} if record["timestamp"] is None else {"timestamp": record["timestamp"]}
            producer.produce(
                topic,
                value=decode(record["value"]),
                key=decode(record["key"]),
                partition=record["partition"],
                headers=headers_of(record),
                on_delivery=delivered(place),
                **stamp,
            )
        producer.flush(45)
        return results

    def open(self, spec):
        return Consumer(self._bootstrap, spec)

    def create_topic(self, topic, partitions, configs):
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=configs)
        self._admin.create_topics([wanted], request_timeout=REQUEST_TIMEOUT_S)[topic].result()

    def delete_topic(self, topic):
        self._admin.delete_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[topic].result()

    def list_topics(self):
        return {"topics": list(self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics)}

    def describe_topic(self, topic):
        asked = confluent_kafka.TopicCollection([topic])
        found = self._admin.describe_topics(asked, request_timeout=REQUEST_TIMEOUT_S)[topic].result()
        return {"partitions": len(found.partitions)}

    def create_partitions(self, topic, count):
        wanted = NewPartitions(topic, count)
        self._admin.create_partitions([wanted], request_timeout=REQUEST_TIMEOUT_S)[topic].result()

    def alter_config(self, topic, configs):
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        answers = self._admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        answers[resource].result()

    def describe_config(self, topic):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self._admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource].result()
        return {"configs": {entry.name: entry.value for entry in found.values()}}

    def delete_records(self, topic, partition, before):
        wanted = TopicPartition(topic, partition, before)
        self._admin.delete_records([wanted], request_timeout=REQUEST_TIMEOUT_S)[wanted].result()

    def list_offsets(self, topic, partition, at):
        if isinstance(at, dict):
            spec = OffsetSpec.for_timestamp(at["time"])
        else:
            spec = OffsetSpec.earliest() if at == "earliest" else OffsetSpec.latest()
        asked = TopicPartition(topic, partition)
        found = self._admin.list_offsets({asked: spec}, request_timeout=REQUEST_TIMEOUT_S)[asked].result()
        return {"offset": found.offset if found.offset >= 0 else None}

    def list_groups(self):
        found = self._admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result()
        if found.errors:
            raise found.errors[0]
        return {"groups": [group.group_id for group in found.valid]}

    def describe_group(self, group):
        found = self._admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[group].result()
        return {"state": found.state.name, "members": len(found.members)}

    def delete_group(self, group):
        self._admin.delete_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[group].result()

    def group_offsets(self, group, topic, partition):
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
        answers = self._admin.list_consumer_group_offsets([asked], request_timeout=REQUEST_TIMEOUT_S)
        found = answers[group].result().topic_partitions[0]
        return {"offset": found.offset if found.offset >= 0 else None}


if __name__ == "__main__":
    serve(Client(sys.argv[1]))
