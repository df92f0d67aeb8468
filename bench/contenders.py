"""Those who are compared: nodes of Tidelog, nodes of Apache Kafka. All are processes of this machine, on loopback.

A contender is started, asked, killed and measured the same way whatever it is: questions go over Kafka's protocol, in
versions that both speak, and processes are known by their pids.
"""

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from bench import kafka_server
from bench.asked import AskedCluster
from bench.cluster_nodes import AGREE_S_MAX, free_ports, wait_for
from bench.frames import delete_topic, header_of, metadata_of
from bench.processes import Program, ProgramFailed
from bench.raw_client import RawClient
from tidelog.wire.frames import decode_response, encode_request
from tidelog.wire.messages import CreateTopicsRequest, CreateTopicsRequestConfig, CreateTopicsRequestTopic

HOST = "127.0.0.1"
NODES = 3
REPLICATION = 3
START_S_MAX = 90.0
CREATE_MS_MAX = 30_000
TOPICS_PER_REQUEST = 100
TOPIC_EXISTS = 36
VERSIONS_MAX = {2: 8}  # newer ListOffsets, Kafka 4.1 knows and does not answer
SETTLE_S_MAX = 15.0  # after a load, until background work has ended
SETTLED_SHARE = 0.3  # of a core, all nodes together: a thousand idle topics alone cost Kafka half of it
SETTLED_S = 0.25

TIDELOG, KAFKA = "Tidelog", "Kafka"


@dataclass
class Contender(AskedCluster):
    """`start`, then anything else, then `stop`. `commands` are what follows `python -m`, by node."""

    name: str
    folder: str
    ports: dict[int, int]
    commands: Mapping[int, Sequence[str]]
    programs: dict[int, Program] = field(default_factory=dict)
    """Those that run."""

    # Processes

    def begin(self, nodes: Sequence[int] | None = None) -> None:
        """Start nodes, all of them if not said otherwise, without waiting for anything."""
        for node in nodes or list(self.commands):
            log_path = os.path.join(self.folder, f"{self.name.lower()}-{node}.log")
            self.programs[node] = Program(self.commands[node], log_path)

    def start(self, nodes: Sequence[int] | None = None) -> None:
        """Until every node that runs knows of all that run."""
        self.begin(nodes)

        def known() -> bool | None:
            found = [{broker.node_id for broker in self.ask(metadata_of([]), node).brokers} for node in self.programs]
            return all(brokers >= self.programs.keys() for brokers in found) or None

        wait_for(f"{self.name} does not serve", START_S_MAX, known)

    def kill(self, node: int) -> None:
        """kill -9."""
        self.programs.pop(node).kill()

    def stop(self) -> None:
        """All that run, in order if they can. What they leave is thrown away, so a slow one is killed."""
        running, self.programs = self.programs, {}
        for program in running.values():
            program.terminate()
        for program in running.values():
            with suppress(ProgramFailed):
                program.stop()

    def kill_all(self) -> None:
        for node in list(self.programs):
            self.kill(node)

    # What they use

    def cpu_s(self) -> float:
        """Of all nodes together, since they were started."""
        return sum(program.cpu_s() for program in self.programs.values())

    def memory_mb(self, key: str = "VmRSS") -> float:
        """The largest node's."""
        return max(program.memory_mb(key) for program in self.programs.values())

    def settle(self) -> None:
        """Wait until they have next to nothing to do: that would be done at somebody else's expense."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while time.monotonic() < deadline:
            before_s = self.cpu_s()
            time.sleep(SETTLED_S)
            if self.cpu_s() - before_s < SETTLED_S * SETTLED_SHARE:
                return

    def drop_page_cache(self) -> None:
        """Everything it has written is on disk, and only there."""
        for directory, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):
                    descriptor = os.open(os.path.join(directory, name), os.O_RDONLY)
                    try:
                        os.fdatasync(descriptor)
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    finally:
                        os.close(descriptor)

    # Questions

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def connect(self, node: int) -> RawClient:
        return RawClient((HOST, self.ports[node]))

    def ask(self, request: object, node: int | None = None) -> Any:
        """One request to one node, or to any, over a connection of its own."""
        header = header_of(request)
        version = min(header.api_version, VERSIONS_MAX.get(header.api_key, header.api_version))
        header = header._replace(api_version=version)
        with closing(self.connect(random.choice(list(self.programs)) if node is None else node)) as client:
            return decode_response(header, client.exchange(b"".join(encode_request(header, request))))

    def create(self, topics: Sequence[str], partitions: int = 1, configs: Mapping[str, object] | None = None) -> None:
        """Waits until every partition has a leader."""
        told = {"retention.ms": -1, **(configs or {})}  # ready-made batches are years old
        given = [CreateTopicsRequestConfig(name=name, value=str(value)) for name, value in told.items()]
        replication = min(REPLICATION, len(self.commands))
        for first in range(0, len(topics), TOPICS_PER_REQUEST):
            wanted = [
                CreateTopicsRequestTopic(
                    name=topic, num_partitions=partitions, replication_factor=replication, configs=given
                )
                for topic in topics[first : first + TOPICS_PER_REQUEST]
            ]

            def created(request: CreateTopicsRequest) -> bool:
                failed = [topic for topic in self.ask(request).topics if topic.error_code not in (0, TOPIC_EXISTS)]
                assert not failed, f"{failed[0].name}: error {failed[0].error_code}, {failed[0].error_message}"
                return True

            request = CreateTopicsRequest(topics=wanted, timeout_ms=CREATE_MS_MAX)
            wait_for("topics are not created", AGREE_S_MAX, lambda request=request: created(request))
        wait_for("topics have no leaders", AGREE_S_MAX, lambda: self.all_lead(topics) or None)

    def await_in_sync(self, topic: str) -> None:
        """Wait until all replicas of a topic have what is committed."""

        def whole() -> bool | None:
            partitions = self.ask(metadata_of([topic])).topics[0].partitions
            return all(len(partition.isr_nodes) == len(partition.replica_nodes) for partition in partitions) or None

        wait_for(f"replicas of {topic} are missing", AGREE_S_MAX, whole)

    def leader_of(self, topic: str) -> int:
        """Of partition 0; a node that runs."""

        def leader() -> int | None:
            for partition in self.ask(metadata_of([topic])).topics[0].partitions:  # none: the node has not heard of it
                if partition.partition_index == 0 and partition.leader_id in self.programs:
                    return partition.leader_id
            return None

        return wait_for(f"{topic} has no leader", AGREE_S_MAX, leader)

    def delete(self, topic: str) -> None:
        request = delete_topic(topic)
        wait_for(f"{topic} is not deleted", AGREE_S_MAX, lambda: not self.ask(request).responses[0].error_code or None)


def tidelog(folder: str, nodes: int = NODES, **settings: object) -> Contender:
    """With its default settings, but for those that are given (`storage_sync="none"`)."""
    numbers = range(1, nodes + 1)
    free = free_ports(2 * nodes)
    ports = dict(zip(numbers, free, strict=False))
    peers = ",".join(f"{node}@{HOST}:{port}" for node, port in zip(numbers, free[nodes:], strict=True))
    commands: dict[int, list[str]] = {}
    for node in numbers:
        told = {
            "node.id": node,
            "data.dir": os.path.join(folder, f"node-{node}"),
            "port": ports[node],
            "cluster.nodes": peers if nodes > 1 else "",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        sets = [text for name, value in told.items() for text in ("--set", f"{name}={value}")]
        commands[node] = ["tidelog.cli", "server", *sets]
    return Contender(TIDELOG, folder, ports, commands)


def kafka(folder: str, nodes: int = NODES, **settings: object) -> Contender:
    """With its default settings, but for replication and those that are given. Raises `Unavailable`."""
    numbers = range(1, nodes + 1)
    free = free_ports(2 * nodes)
    ports, controllers = dict(zip(numbers, free, strict=False)), dict(zip(numbers, free[nodes:], strict=True))
    cluster_id = kafka_server.new_cluster_id()
    more = {name.replace("_", "."): value for name, value in settings.items()}
    commands: dict[int, list[str]] = {}
    for node in numbers:
        data = os.path.join(folder, f"kafka-{node}")
        told = kafka_server.properties(node, ports, controllers, data, more)
        commands[node] = ["bench.become", *kafka_server.prepare(folder, node, cluster_id, told)]
    return Contender(KAFKA, folder, ports, commands)


@contextmanager
def running(contender: Contender) -> Iterator[Contender]:
    try:
        contender.start()
        yield contender
    except BaseException:
        contender.kill_all()
        raise
    contender.stop()
