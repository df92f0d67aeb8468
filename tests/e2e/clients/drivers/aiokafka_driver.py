"""aiokafka, whose loop has a thread of its own, so that members of a group keep their heartbeat between commands."""

# Its answers are of no declared type.
# pyright: reportAttributeAccessIssue=false

import asyncio
import sys
import threading

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata
from stdio import Refused, decode, headers_of, record_to_json, serve

COMMAND_TIMEOUT_S = 50
LACKS = {
    "delete_group": "aiokafka's admin client cannot delete groups",
    "describe_unknown": "aiokafka lets the broker create the topic that it asks about",
    "fencing": "aiokafka takes its instance back from the other member, without a word",
}


class Loop:
    """An event loop that runs all the time in a thread of its own."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(COMMAND_TIMEOUT_S)


def check(code, message=""):
    if code:
        raise for_code(code)(message)


class Consumer:
    def __init__(self, loop, bootstrap, spec):
        self._loop = loop
        self._consumer = loop.run(self._opened(bootstrap, spec))

    async def _opened(self, bootstrap, spec):
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=spec["group"],
            group_instance_id=spec["instance"],
            auto_offset_reset=spec["reset"],
            enable_auto_commit=False,
            session_timeout_ms=45000,
            heartbeat_interval_ms=300,
            fetch_max_wait_ms=100,
        )
        if spec["topics"]:
            consumer.subscribe(spec["topics"])
            await consumer.start()
            return consumer
        await consumer.start()
        starts = {TopicPartition(start["topic"], start["partition"]): start["at"] for start in spec["assign"]}
        consumer.assign(list(starts))
        for partition, at in starts.items():
            await self._seek(consumer, partition, at)
        return consumer

    @staticmethod
    async def _seek(consumer, partition, at):
        if at == "earliest":
            await consumer.seek_to_beginning(partition)
        elif at == "latest":
            await consumer.seek_to_end(partition)
        elif isinstance(at, dict):
            found = (await consumer.offsets_for_times({partition: at["time"]}))[partition]
            if found is None:
                await consumer.seek_to_end(partition)
            else:
                consumer.seek(partition, found.offset)
        else:
            consumer.seek(partition, at)

    def step(self, timeout_s):
        found = self._loop.run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [
            record_to_json(each.topic, each.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
            for batch in found.values()
            for each in batch
        ]

    def assignment(self):
        return [(each.topic, each.partition) for each in self._consumer.assignment()]

    def commit(self, offsets):
        if offsets is None:
            self._loop.run(self._consumer.commit())
        else:
            chosen = {TopicPartition(*where): OffsetAndMetadata(offset, "") for where, offset in offsets.items()}
            self._loop.run(self._consumer.commit(chosen))

    def committed(self, partition):
        return self._loop.run(self._consumer.committed(TopicPartition(*partition)))

    def close(self):
        self._loop.run(self._consumer.stop())


class Client:
    def __init__(self, bootstrap):
        self._bootstrap = bootstrap
        self._loop = Loop()
        self._admin = self._loop.run(self._admin_started())

    async def _admin_started(self):
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        return admin

    def hello(self):
        return {"client": f"aiokafka {aiokafka.__version__}", "lacks": LACKS}

    def refusal(self, error):
        if not isinstance(error, KafkaError):
            return None
        code = getattr(error, "errno", -1)
        return Refused(code if code > 0 else None, repr(error))

    def produce(self, topic, codec, idempotent, acks, records):
        return self._loop.run(self._produced(topic, codec, idempotent, acks, records))

    async def _produced(self, topic, codec, idempotent, acks, records):
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks=acks,
            linger_ms=20,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=decode(record["value"]),
                    key=decode(record["key"]),
                    partition=record["partition"],
                    timestamp_ms=record["timestamp"],
                    headers=headers_of(record),
                )
                for record in records
            ]
            return [self._result(outcome) for outcome in await asyncio.gather(*sent, return_exceptions=True)]
        finally:
            await producer.stop()

    def _result(self, outcome):
        if outcome is None:  # nobody said where it went: acks=0
            return {"partition": None, "offset": None}
        if not isinstance(outcome, BaseException):
            return {"partition": outcome.partition, "offset": outcome.offset}
        refused = self.refusal(outcome)
        if refused is None:
            raise outcome
        return {"error": refused.as_json()}

    def open(self, spec):
        return Consumer(self._loop, self._bootstrap, spec)

    def create_topic(self, topic, partitions, configs):
        wanted = NewTopic(topic, partitions, 1, topic_configs=configs)
        for _, code, message in self._loop.run(self._admin.create_topics([wanted])).topic_errors:
            check(code, message)

    def delete_topic(self, topic):
        for _, code in self._loop.run(self._admin.delete_topics([topic])).topic_error_codes:
            check(code)

    def list_topics(self):
        return {"topics": self._loop.run(self._admin.list_topics())}

    def describe_topic(self, topic):
        found = self._loop.run(self._admin.describe_topics([topic]))[0]
        check(found["error_code"])
        return {"partitions": len(found["partitions"])}

    def create_partitions(self, topic, count):
        self._loop.run(self._admin.create_partitions({topic: NewPartitions(count)}))

    def alter_config(self, topic, configs):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)
        for answer in self._loop.run(self._admin.alter_configs([resource])):
            for code, message, *_ in answer.resources:
                check(code, message)

    def describe_config(self, topic):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        configs = {}
        for answer in self._loop.run(self._admin.describe_configs([resource])):
            for code, message, _, _, entries in answer.resources:
                check(code, message)
                configs.update({entry[0]: entry[1] for entry in entries})
        return {"configs": configs}

    def delete_records(self, topic, partition, before):
        wanted = {TopicPartition(topic, partition): RecordsToDelete(before)}
        self._loop.run(self._admin.delete_records(wanted))

    def list_offsets(self, topic, partition, at):
        return {"offset": self._loop.run(self._offset(TopicPartition(topic, partition), at))}

    async def _offset(self, partition, at):
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap)
        await consumer.start()
        try:
            if at == "earliest":
                return (await consumer.beginning_offsets([partition]))[partition]
            if at == "latest":
                return (await consumer.end_offsets([partition]))[partition]
            found = (await consumer.offsets_for_times({partition: at["time"]}))[partition]
            return None if found is None else found.offset
        finally:
            await consumer.stop()

    def list_groups(self):
        return {"groups": [name for name, *_ in self._loop.run(self._admin.list_consumer_groups())]}

    def describe_group(self, group):
        found = self._loop.run(self._admin.describe_consumer_groups([group]))[0].groups[0]
        check(found[0])
        return {"state": found[2], "members": len(found[5])}

    def group_offsets(self, group, topic, partition):
        where = TopicPartition(topic, partition)
        found = self._loop.run(self._admin.list_consumer_group_offsets(group, partitions=[where]))[where]
        return {"offset": found.offset if found.offset >= 0 else None}


if __name__ == "__main__":
    serve(Client(sys.argv[1]))
