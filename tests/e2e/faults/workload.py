"""Clients that write, read and ask while things go wrong, and write down everything they did (`history`).

Producers send records `client:number` and never the same twice; what retries there are is librdkafka's own. `stop`
lets every record that was sent come to its end, which the clients' own timeouts bound.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.server.client import EARLIEST, LATEST, Client, batch_of, offsets_request
from tidelog.wire.errors import ErrorCode

from .asking import AskError, ask, ask_metadata
from .cluster import Cluster, NodeProcess
from .history import Asked, Committed, FinalRead, History, Pipelined, Polled, Produced

MESSAGE_TIMEOUT_S = 30.0  # idempotent producers ride out everything that a scenario does
SAID_MAX = 2_000  # lines of a member's library
IMPATIENT_TIMEOUT_S = 5.0
END_TIMEOUT_S = 60.0
FINAL_TIMEOUT_S = 60.0
PIPELINE_DEPTH = 8
RESTLESS_S = 3.0
CLIENT = {
    "socket.timeout.ms": 3_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 250,
    "topic.metadata.refresh.interval.ms": 2_000,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "log_level": 0,
}


def padded(client: str, number: int, size: int) -> bytes:
    return f"{client}:{number}|".encode().ljust(size, b".")


def value_of(data: bytes | None) -> str:
    return (data or b"").partition(b"|")[0].decode(errors="replace")


def create_topic(bootstrap: str, topic: str, partitions: int, replication: int, timeout_s: float = 30.0) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **CLIENT})
    deadline_s = time.monotonic() + timeout_s
    while True:
        future = admin.create_topics([NewTopic(topic, partitions, replication)], operation_timeout=5)[topic]
        try:
            future.result(timeout_s)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)
        else:
            return


class _Worker:
    """A client in a thread of its own; what it raises is raised again by `join`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(END_TIMEOUT_S)
        if self._thread.is_alive():
            raise TimeoutError(f"client {self.name} has not ended after {END_TIMEOUT_S} s")
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - for whoever joins
            self._error = error

    def run(self) -> None:
        raise NotImplementedError


class RecordProducer(_Worker):
    def __init__(self, name: str, load: "Load", *, idempotent: bool, per_second: int) -> None:
        super().__init__(name)
        self._load = load
        self._interval_s = 1 / per_second
        self._waiting: dict[int, tuple[int, float]] = {}
        settings: dict[str, Any] = {"bootstrap.servers": load.bootstrap, **CLIENT, "acks": "all", "linger.ms": 2}
        settings["enable.idempotence"] = idempotent
        settings["message.timeout.ms"] = int((MESSAGE_TIMEOUT_S if idempotent else IMPATIENT_TIMEOUT_S) * 1000)
        settings["request.timeout.ms"] = 3_000
        self._settings = settings
        if idempotent:
            load.history.idempotent.add(name)

    def run(self) -> None:
        producer = Producer(self._settings)
        history, number = self._load.history, 0
        due_s = time.monotonic()
        while not self._stop.is_set():
            number += 1
            partition = number % self._load.partitions
            sent_s = time.monotonic()
            history.sent[f"{self.name}:{number}"] = (partition, sent_s)
            try:
                producer.produce(
                    self._load.topic,
                    padded(self.name, number, self._load.value_bytes),
                    partition=partition,
                    on_delivery=self._ended(number, partition, sent_s),
                )
            except BufferError:
                self._record(number, partition, sent_s, None, "queue full")
            except KafkaException as error:  # fatal: `poll` says why
                self._record(number, partition, sent_s, None, str(error))
            due_s = max(due_s + self._interval_s, time.monotonic() - 0.1)
            try:
                producer.poll(max(0.0, due_s - time.monotonic()))
            except KafkaException as error:
                history.fatal.append((self.name, str(error)))
                break
        with contextlib.suppress(KafkaException):  # it was told above
            producer.flush(MESSAGE_TIMEOUT_S + 10)

    def _ended(self, number: int, partition: int, sent_s: float) -> Callable[[KafkaError | None, Message], None]:
        def ended(error: KafkaError | None, message: Message) -> None:
            offset = message.offset() if error is None else None
            self._record(number, partition, sent_s, offset, "" if error is None else error.name())

        return ended

    def _record(self, number: int, partition: int, sent_s: float, offset: int | None, error: str) -> None:
        item = Produced(self.name, number, partition, sent_s, time.monotonic(), offset, error)
        self._load.history.produced.append(item)


class PipelineProducer(_Worker):
    """Sends raw requests to partition 0's leader without waiting, a new connection whenever one fails (promise 5)."""

    def __init__(self, name: str, load: "Load", cluster: Cluster) -> None:
        super().__init__(name)
        self._load = load
        self._cluster = cluster
        self._number = 0

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self._stop.is_set():
            leader = await asyncio.to_thread(self._find_leader)
            if leader is None:
                await asyncio.sleep(0.1)
                continue
            try:
                async with asyncio.timeout(2):
                    client = await Client.connect(self._cluster.nodes[leader].port)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.1)
                continue
            try:
                await self._use(client)
            finally:
                client.abort()
                await asyncio.sleep(0)

    def _find_leader(self) -> int | None:
        for node in self._cluster.answering():
            with contextlib.suppress(AskError, IndexError):
                found = ask_metadata(node.port, self._load.topic, timeout_s=1.0).topics[0].partitions
                leader = next((item.leader_id for item in found if item.partition_index == 0), -1)
                if leader in self._cluster.nodes:
                    return leader
        return None

    async def _use(self, client: Client) -> None:
        """Until a produce fails; then everything that is under way, and what is sent after it, must fail too."""
        first, outcomes = self._number + 1, list[int | None]()
        sent: list[tuple[int, float]] = []
        failed = False
        while not failed and not self._stop.is_set():
            for _ in range(PIPELINE_DEPTH):
                self._send(client, sent)
            failed = await self._take(client, sent, outcomes)
            await asyncio.sleep(0.02)
        if failed:
            for _ in range(PIPELINE_DEPTH):
                self._send(client, sent)
            await self._take(client, sent, outcomes)
        self._load.history.pipelined.append(Pipelined(self.name, 0, first, outcomes))

    def _send(self, client: Client, sent: list[tuple[int, float]]) -> None:
        self._number += 1
        now_s = time.monotonic()
        self._load.history.sent[f"{self.name}:{self._number}"] = (0, now_s)
        sent.append((self._number, now_s))
        client.send_produce(self._load.topic, batch_of(padded(self.name, self._number, 64)), timeout_ms=3_000)

    async def _take(self, client: Client, sent: list[tuple[int, float]], outcomes: list[int | None]) -> bool:
        """The answers to all that was sent; true when one of them is no, or none comes."""
        failed = False
        while len(outcomes) < len(sent):
            number, sent_s = sent[len(outcomes)]
            offset, error = None, ""
            try:
                answer = await client.receive_produced()
            except (AssertionError, OSError, TimeoutError, asyncio.IncompleteReadError, IndexError) as ended:
                if "order" in str(ended):
                    raise  # the answer to another request
                error = f"no answer: {type(ended).__name__}"
                client.abort()
            else:
                offset = answer.base_offset if answer.error_code == 0 else None
                error = ErrorCode(answer.error_code).name if answer.error_code else ""
            failed = failed or offset is None
            outcomes.append(offset)
            item = Produced(self.name, number, 0, sent_s, time.monotonic(), offset, error)
            self._load.history.produced.append(item)
        return failed


class RecordConsumer(_Worker):
    """Reads all partitions from the beginning on, by itself."""

    def __init__(self, name: str, load: "Load", rack: str | None = None) -> None:
        super().__init__(name)
        self._load = load
        self._settings = {
            "bootstrap.servers": load.bootstrap,
            **CLIENT,
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            **({"client.rack": rack} if rack else {}),
        }

    def run(self) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.assign([TopicPartition(self._load.topic, number, 0) for number in range(self._load.partitions)])
            while not self._stop.is_set():
                self._load.note_polled(self.name, 0, consumer.consume(500, 0.1))
        finally:
            consumer.close()


class _Remembering(logging.Handler):
    """What a client's library said of its positions, the last of it: it is shown when a scenario fails."""

    ABOUT = ("OFFSET", "VALIDATE", "SEEK", "FETCHERR", "ASSIGN", "COMMIT", "LEADER", "COORD")

    def __init__(self, name: str, history: History) -> None:
        super().__init__()
        self._said = history.said.setdefault(name, deque(maxlen=SAID_MAX))

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if any(word in text.partition(" ")[0] for word in self.ABOUT):
            self._said.append((time.monotonic(), text))


class GroupConsumer(_Worker):
    """A member of a group that commits as it goes; every assignment is a session of its own.

    A restless one leaves every so often and joins anew, so that the others have to take over from it.
    """

    def __init__(self, name: str, group: str, load: "Load", *, restless: bool = False) -> None:
        super().__init__(name)
        self._stay_s = RESTLESS_S if restless else float("inf")
        self._load = load
        self._session = 0
        load.history.groups[name] = group
        self._logger = logging.Logger(name)  # noqa: LOG001 - one for each client, which nobody else hears
        self._logger.addHandler(_Remembering(name, load.history))
        self._settings = {
            "bootstrap.servers": load.bootstrap,
            **CLIENT,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "on_commit": self._committed,
            "debug": "topic,fetch,cgrp",
            "log_level": 7,
            "logger": self._logger,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
        }

    def run(self) -> None:
        while not self._stop.is_set():
            self._stay(time.monotonic() + self._stay_s)

    def _stay(self, until_s: float) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe([self._load.topic], on_assign=self._assigned)
            while not self._stop.is_set() and time.monotonic() < until_s:
                message = consumer.poll(0.1)  # one at a time: a new assignment comes between two messages
                self._load.note_polled(self.name, self._session, [message] if message is not None else [])
        finally:
            consumer.close()

    def _assigned(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._session += 1
        self._load.history.sessions[self.name, self._session] = time.monotonic()

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for item in partitions if error is None else ():
            if item.error is None and item.offset >= 0:
                note = Committed(self.name, item.partition, time.monotonic(), item.offset)
                self._load.history.committed.append(note)


class Watcher(_Worker):
    """Asks for earliest and latest, again and again."""

    def __init__(self, name: str, load: "Load") -> None:
        super().__init__(name)
        self._load = load

    def run(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._load.bootstrap, **CLIENT, "group.id": self.name})
        try:
            while not self._stop.wait(0.05):
                for number in range(self._load.partitions):
                    self._ask(consumer, number)
        finally:
            consumer.close()

    def _ask(self, consumer: Consumer, partition: int) -> None:
        asked_s = time.monotonic()
        try:
            answer = consumer.get_watermark_offsets(TopicPartition(self._load.topic, partition), timeout=2.0)
        except KafkaException:
            return
        if answer is not None:
            low, latest = answer
            earliest = low if low < latest else None  # librdkafka takes the latest for both when it has but one answer
            item = Asked(self.name, partition, asked_s, time.monotonic(), earliest, latest)
            self._load.history.asked.append(item)


class NodeWatcher(_Worker):
    """Asks one node for earliest and latest, whether it leads or not: one that was deposed must not answer."""

    def __init__(self, name: str, load: "Load", node: NodeProcess) -> None:
        super().__init__(name)
        self._load = load
        self._node = node

    def run(self) -> None:
        while not self._stop.wait(0.05):
            for number in range(self._load.partitions):
                asked_s = time.monotonic()
                earliest, latest = self._ask(number, EARLIEST), self._ask(number, LATEST)
                if earliest is not None or latest is not None:
                    item = Asked(self.name, number, asked_s, time.monotonic(), earliest, latest)
                    self._load.history.asked.append(item)

    def _ask(self, partition: int, timestamp: int) -> int | None:
        try:
            answer = ask(self._node.port, offsets_request(self._load.topic, timestamp, partition), timeout_s=6.0)
        except AskError:
            return None
        found = answer.topics[0].partitions[0]
        return found.offset if found.error_code == 0 else None


class Load:
    """All clients of one scenario, on one topic."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        topic: str = "t",
        partitions: int = 2,
        replication: int = 3,
        per_second: int = 60,
        value_bytes: int = 1_000,
    ) -> None:
        self.bootstrap = cluster.bootstrap
        self.topic = topic
        self.partitions = partitions
        self.value_bytes = value_bytes
        self.history = History()
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, **CLIENT})
        create_topic(self.bootstrap, topic, partitions, replication)
        self._producers: list[_Worker] = [
            RecordProducer("ida", self, idempotent=True, per_second=per_second),
            RecordProducer("idb", self, idempotent=True, per_second=per_second),
            RecordProducer("plain", self, idempotent=False, per_second=per_second),
            PipelineProducer("raw", self, cluster),
        ]
        self._readers: list[_Worker] = [
            RecordConsumer("reader", self),
            RecordConsumer("near", self, rack="b"),
            GroupConsumer("m1", "group", self),
            GroupConsumer("m2", "group", self, restless=True),
            Watcher("watch", self),
            *(NodeWatcher(f"watch{node.number}", self, node) for node in cluster.nodes.values()),
        ]

    def start(self) -> None:
        for group in sorted(set(self.history.groups.values())):
            self._stand_at_the_beginning(group)
        for worker in (*self._producers, *self._readers):
            worker.start()

    def _stand_at_the_beginning(self, group: str) -> None:
        """The group has committed 0 before its members come, so that none of them asks where the log begins.

        When librdkafka (2.16) is assigned anew while it waits for the answer to that question, it takes the late one
        for a reason to ask again, and goes to the beginning from wherever it stands (`outdated offset response`).
        """
        consumer = Consumer({"bootstrap.servers": self.bootstrap, **CLIENT, "group.id": group})
        try:
            beginning = [TopicPartition(self.topic, number, 0) for number in range(self.partitions)]
            deadline_s = time.monotonic() + FINAL_TIMEOUT_S
            while True:  # the groups' topic is made for it, and has no leader at first
                try:
                    consumer.commit(offsets=beginning, asynchronous=False)
                except KafkaException:
                    if time.monotonic() > deadline_s:
                        raise
                else:
                    return
        finally:
            consumer.close()

    def stop(self) -> None:
        """Producers first: all that was sent comes to an end; then readers, and one last look at everything."""
        for workers in (self._producers, self._readers):
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join()
        self._read_all()

    def note_polled(self, name: str, session: int, messages: list[Message]) -> None:
        records: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for message in messages:
            if message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                records[partition].append((offset, value_of(message.value())))
        for partition, found in records.items():
            self.history.polled.append(Polled(name, session, partition, found))

    def wait_acknowledged(self, count: int, timeout_s: float, since_s: float | None = None) -> None:
        """So many records of every partition were sent after `since_s` and acknowledged: the cluster works."""
        since_s = time.monotonic() if since_s is None else since_s
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = dict.fromkeys(range(self.partitions), 0)
            for item in reversed(self.history.produced):
                if item.ended_s < since_s:
                    break
                if item.offset is not None and item.sent_s >= since_s:
                    found[item.partition] += 1
            if min(found.values()) >= count:
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the cluster took {found} records a partition in {timeout_s} s, not {count}")
            time.sleep(0.02)

    def delete_records(self, offset: int) -> None:
        """Everything before `offset`, in every partition; consumers are past it long since."""
        self._delete(dict.fromkeys(range(self.partitions), offset))

    def delete_what_was_read(self) -> dict[int, int]:
        """Everything that all consumers have got; gives the new log starts."""
        positions: dict[tuple[str, int], int] = {}
        for poll in list(self.history.polled):
            who = self.history.groups.get(poll.client, poll.client)
            key = (who, poll.partition)
            positions[key] = max(positions.get(key, 0), poll.records[-1][0])
        readers = {who for who, _ in positions}
        starts = {
            number: min((positions.get((who, number), 0) for who in readers), default=0)
            for number in range(self.partitions)
        }
        self._delete(starts)
        return starts

    def _delete(self, starts: Mapping[int, int]) -> None:
        partitions = [TopicPartition(self.topic, number, offset) for number, offset in starts.items()]
        for future in self._admin.delete_records(partitions, request_timeout=5, operation_timeout=5).values():
            with contextlib.suppress(KafkaException):
                future.result(10)

    def alter_topic(self, times: int) -> None:
        """So many commands for the cluster's own log."""
        futures: list[Any] = []
        for number in range(times):
            entry = ConfigEntry("retention.ms", str(86_400_000 + number), incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
            futures += self._admin.incremental_alter_configs([resource], request_timeout=5).values()
        for future in futures:
            with contextlib.suppress(KafkaException):
                future.result(10)

    def _read_all(self) -> None:
        """Every partition from its start to its end, by a client that knows nothing."""
        settings = {"bootstrap.servers": self.bootstrap, **CLIENT, "group.id": "final", "enable.auto.commit": False}
        consumer = Consumer({**settings, "auto.offset.reset": "error", "fetch.wait.max.ms": 100})
        deadline_s = time.monotonic() + FINAL_TIMEOUT_S
        try:
            for number in range(self.partitions):
                earliest, latest = self._ends(consumer, number, deadline_s)
                records: list[tuple[int, str]] = []
                consumer.assign([TopicPartition(self.topic, number, earliest)])
                while earliest < latest and (not records or records[-1][0] < latest - 1):
                    records += [
                        (message.offset() or 0, value_of(message.value()))
                        for message in consumer.consume(1000, 0.2)
                        if message.error() is None
                    ]
                    if time.monotonic() > deadline_s:
                        break  # the checker says what is missing
                records = [item for item in records if item[0] < latest]
                self.history.final.append(FinalRead(number, earliest, latest, records))
        finally:
            consumer.close()

    def _ends(self, consumer: Consumer, partition: int, deadline_s: float) -> tuple[int, int]:
        while True:
            try:
                answer = consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=5.0)
            except KafkaException:
                if time.monotonic() > deadline_s:
                    raise
                continue
            if answer is not None:
                return answer
