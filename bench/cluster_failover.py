"""kill -9 of a stream's leader, again and again: how long until the next produce is acknowledged.

Two clients feel it. A bare one asks the survivors who leads and tries again every few milliseconds: that is the
cluster's own time. librdkafka, with its own ideas of when to ask again, is what an application sees.
"""

import random
import threading
import time
from contextlib import closing, suppress

from confluent_kafka import KafkaError, Message, Producer

from bench.cluster_nodes import Cluster, ClusterFailed, running_cluster
from bench.frames import KIB, batch_of, check_produced, metadata_of, produce_frame
from bench.raw_client import RawClient
from bench.rounds import Line, percentile
from bench.scratch import scratch

TOPIC = "failover"
KILLS = 10
LOAD_S = (0.3, 0.8)  # between kills, so that they do not fall together with anything that comes at intervals
PACE_S = 0.01
RETRY_S = 0.005
ANSWER_MS_MAX = 1_000
RECONNECT_MS_MAX = 500
LATE_S = 0.02  # an acknowledgement so soon after the kill was sent before it
OUTAGE_S_MAX = 30.0
LIMIT_S = 1.0


class LightLoad:
    """librdkafka, a record every hundredth of a second; remembers when records were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                # By default it leaves a node that was down alone for up to 10 s, and here each was down a moment ago.
                "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
                "log_level": 0,
            }
        )
        self._lock = threading.Lock()
        self._acknowledged_at: list[float] = []
        self.failed = 0  # records that were given up
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        next_at = time.perf_counter()
        while not self._stopped.is_set():
            with suppress(BufferError):  # it holds as much as it can: a long outage
                self._producer.produce(TOPIC, bytes(100), on_delivery=self._report)
            next_at = max(next_at + PACE_S, time.perf_counter())
            while (left_s := next_at - time.perf_counter()) > 0:
                self._producer.poll(left_s)

    def _report(self, error: KafkaError | None, _message: Message) -> None:
        with self._lock:
            if error is None:
                self._acknowledged_at.append(time.perf_counter())
            else:
                self.failed += 1

    def first_after(self, moment: float) -> float:
        """When the first record after a moment was acknowledged."""
        deadline = time.perf_counter() + OUTAGE_S_MAX
        while time.perf_counter() < deadline:
            with self._lock:
                found = next((at for at in self._acknowledged_at if at > moment), None)
                if found is not None:
                    self._acknowledged_at = [self._acknowledged_at[-1]]
                    return found
            time.sleep(RETRY_S)
        raise ClusterFailed(f"librdkafka got nothing acknowledged within {OUTAGE_S_MAX:.0f} s")

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._producer.flush(OUTAGE_S_MAX)


class BareProducer:
    """Sends one batch at a time to whoever leads, and looks for a new leader as soon as one fails."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._frame = produce_frame(TOPIC, batch_of(1 * KIB), ANSWER_MS_MAX)
        self._client: RawClient | None = None
        self.leader = -1

    def produce(self) -> None:
        """Until it is acknowledged."""
        deadline = time.perf_counter() + OUTAGE_S_MAX
        while time.perf_counter() < deadline:
            try:
                if self._client is None:
                    self._find_leader()
                if self._client is not None:
                    check_produced(self._client.exchange(self._frame))
                    return
            except (OSError, AssertionError):
                self.close()
            time.sleep(RETRY_S)
        raise ClusterFailed(f"nothing is acknowledged within {OUTAGE_S_MAX:.0f} s")

    def _find_leader(self) -> None:
        leader = self._cluster.ask(metadata_of([TOPIC])).topics[0].partitions[0].leader_id
        if leader in self._cluster.programs:
            self._client, self.leader = self._cluster.connect(leader), leader

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def failover(kills: int = KILLS) -> list[Line]:
    bare_s: list[float] = []
    light_s: list[float] = []
    back_s: list[float] = []
    with scratch() as folder, running_cluster(folder) as cluster:
        cluster.create([TOPIC])
        cluster.await_home(TOPIC)
        with closing(BareProducer(cluster)) as bare, closing(LightLoad(cluster.bootstrap)) as light:
            for _ in range(kills):
                _produce_for(bare, random.uniform(*LOAD_S))
                leader = bare.leader
                killed_at = time.perf_counter()
                cluster.kill(leader)
                bare.produce()
                bare_s.append(time.perf_counter() - killed_at)
                light_s.append(light.first_after(killed_at + LATE_S) - killed_at)
                back_s.append(_bring_back(cluster, leader))
    return [
        _line("leader killed, to the next acknowledgement", bare_s, LIMIT_S),
        _line("the same, as librdkafka sees it", light_s, note=f"; {light.failed} records given up"),
        _line("a killed node, from its start to caught up", back_s),
    ]


def _produce_for(bare: BareProducer, seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        bare.produce()
        time.sleep(PACE_S)


def _bring_back(cluster: Cluster, node: int) -> float:
    begun = time.perf_counter()
    cluster.start([node])
    cluster.await_caught_up(node, TOPIC)
    return time.perf_counter() - begun


def _line(name: str, seconds: list[float], limit_s: float | None = None, note: str = "") -> Line:
    p50, p99, worst = percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds)
    return Line(
        name,
        f"p99 {p99 * 1e3:.0f} ms",
        f"<= {limit_s:.0f} s" if limit_s is not None else "",
        limit_s is None or p99 <= limit_s,
        f"p50 {p50 * 1e3:.0f}, worst {worst * 1e3:.0f} ms of {len(seconds)} kills{note}",
        {"seconds": seconds},
    )
