"""Three nodes as processes, one cluster: started and ended together or one by one, and asked who leads what.

`TIDELOG_BENCH_PROFILE=FOLDER` runs every node under `bench.profiled`, which leaves `node-N.pstats` there in the end.
"""

import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from bench.asked import AskedCluster
from bench.frames import admin, create_topics, delete_topic, metadata_of
from bench.processes import Program, Server
from bench.raw_client import RawClient

NODES = (1, 2, 3)
REPLICATION = len(NODES)
PORTS = range(20_000, 30_000)  # below those the kernel gives to outgoing connections
PORT_TRIES_MAX = 100
FOUND_S_MAX = 30.0
AGREE_S_MAX = 60.0
POLL_S = 0.02
PROFILE_FOLDER = os.environ.get("TIDELOG_BENCH_PROFILE", "")


T = TypeVar("T")


class ClusterFailed(Exception):
    """Something that should happen by itself did not, in time."""


def free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    for _ in range(PORT_TRIES_MAX):
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.add(port)
        if len(ports) == count:
            return list(ports)
    raise ClusterFailed(f"fewer than {count} free ports found")


def wait_for(what: str, seconds_max: float, ask: Callable[[], T | None]) -> T:
    """Ask again and again until there is an answer. A question that fails has none yet."""
    deadline = time.monotonic() + seconds_max
    failure: Exception | None = None
    while time.monotonic() < deadline:
        try:
            answer = ask()
        except (OSError, AssertionError) as error:
            failure = error
        else:
            if answer is not None:
                return answer
        time.sleep(POLL_S)
    raise ClusterFailed(f"{what}: not within {seconds_max:.0f} s ({failure})")


class Cluster(AskedCluster):
    def __init__(self, folder: str, settings: dict[str, object], trace_folder: str = "") -> None:
        """With a `trace_folder` every node runs under `bench.traced`, which leaves `node-N.steps` there in the end."""
        self._folder = folder
        self._trace_folder = trace_folder
        self._settings = settings
        ports = free_ports(2 * len(NODES))
        self._ports: dict[int, int] = dict(zip(NODES, ports, strict=False))
        peers = zip(NODES, ports[len(NODES) :], strict=True)
        self._peers = ",".join(f"{node}@127.0.0.1:{port}" for node, port in peers)
        self.programs: dict[int, Program] = {}  # those that run

    # Processes

    def start(self, nodes: Sequence[int] = NODES) -> dict[int, float]:
        """Start nodes at once and wait until each says that it is ready; after how many seconds each did."""
        begun = time.perf_counter()
        for node in nodes:
            self.programs[node] = Program(self._command(node), os.path.join(self._folder, f"node-{node}.log"))
        ready_s: dict[int, float] = {}
        for node in nodes:
            self.programs[node].await_ready(rb"ready\b.*\bbootstrap=(\S+):(\d+)")
            ready_s[node] = time.perf_counter() - begun
        return ready_s

    def _command(self, node: int) -> list[str]:
        watched: list[str] = []
        if self._trace_folder:
            watched = ["bench.traced", os.path.join(self._trace_folder, f"node-{node}.steps")]
        elif PROFILE_FOLDER:
            watched = ["bench.profiled", os.path.join(PROFILE_FOLDER, f"node-{node}.pstats")]
        settings = {
            "node.id": node,
            "data.dir": os.path.join(self._folder, f"node-{node}"),
            "port": self._ports[node],
            "cluster.nodes": self._peers,
            **{name.replace("_", "."): value for name, value in self._settings.items()},
        }
        sets = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
        return [*watched, "tidelog.cli", "server", *sets]

    def kill(self, node: int) -> None:
        """kill -9."""
        self.programs.pop(node).kill()

    def stop(self) -> None:
        """All that run, each in an orderly way."""
        running, self.programs = self.programs, {}
        for program in running.values():
            program.terminate()
        for program in running.values():
            program.stop()

    def kill_all(self) -> None:
        for node in list(self.programs):
            self.kill(node)

    # Clients

    def server(self, node: int) -> Server:
        return Server(self.programs[node], ("127.0.0.1", self._ports[node]))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def connect(self, node: int) -> RawClient:
        return RawClient(self.server(node).address)

    def ask(self, request: object, node: int | None = None) -> Any:
        """One request to one node, or to any, over a connection of its own."""
        with closing(self.connect(random.choice(list(self.programs)) if node is None else node)) as client:
            return client.call(request)

    def ask_admin(self, method: str, node: int | None = None, **arguments: object) -> Any:
        response = self.ask(admin(method, **arguments), node)
        assert not response.error_code, f"{method}: {response.error_message}"
        return json.loads(response.content)

    # Streams

    def create(self, topics: Sequence[str], partitions: int = 1) -> None:
        """Waits until every partition has a leader, and each leader, if it can be, is at home."""
        missing = set(topics)

        def created() -> bool | None:
            response = self.ask(create_topics(sorted(missing), partitions, REPLICATION))
            missing.difference_update(topic.name for topic in response.topics if topic.error_code in (0, 36))
            errors = {topic.name: (topic.error_code, topic.error_message) for topic in response.topics}
            assert not missing, str([errors[name] for name in sorted(missing)][:3])
            return True

        wait_for("topics are not created", FOUND_S_MAX, created)
        wait_for("topics have no leaders", AGREE_S_MAX, lambda: self.all_lead(topics) or None)

    def delete(self, topic: str) -> None:
        request = delete_topic(topic)
        wait_for("not deleted", FOUND_S_MAX, lambda: not self.ask(request).responses[0].error_code or None)

    def leader_of(self, topic: str) -> int:
        """Of partition 0; a node that runs."""

        def leader() -> int | None:
            number = self.ask(metadata_of([topic])).topics[0].partitions[0].leader_id
            return number if number in self.programs else None

        return wait_for(f"{topic} has no leader", AGREE_S_MAX, leader)

    def await_caught_up(self, node: int, topic: str) -> None:
        """Wait until a node's own replica has everything that is committed now."""
        offset = wait_for("no latest offset", AGREE_S_MAX, lambda: self.latest_offset(topic))

        def has_it() -> bool | None:
            return self.ask_admin("segments", node, topic=topic, partition=0)["high_watermark"] >= offset or None

        wait_for(f"node {node} does not catch up", AGREE_S_MAX, has_it)


@contextmanager
def running_cluster(folder: str, trace_folder: str = "", **settings: object) -> Iterator[Cluster]:
    """Ready, with its data below `folder`; settings as in `Settings`."""
    cluster = Cluster(folder, settings, trace_folder)
    try:
        cluster.start()
        yield cluster
    except BaseException:
        cluster.kill_all()
        raise
    cluster.stop()
