"""A log behind a link that can hold up what it says, and lose it: no client can know then if its record is there."""

import gc
from pathlib import Path

from tests.e2e.faults.cluster import Cluster
from tests.e2e.faults.links import Network
from tests.ports import free_port

from .apache_kafka import ApacheKafka
from .world import Log

CLIENT, SERVER = 1, 2


class UnreliableLog:
    """One broker, Tidelog's or Apache Kafka's; clients are told to dial the link."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._network = Network()
        port = free_port()
        link = self._network.add(CLIENT, SERVER, port)
        self._cluster: Cluster | None = None
        self._kafka: ApacheKafka | None = None
        try:
            if kind == "kafka":
                self._kafka = ApacheKafka(folder, port, link)
            else:
                settings = {"port": str(port), "advertised.port": str(link)}
                self._cluster = Cluster(folder, nodes=1, config_nodes=1, settings=settings)
                self._cluster.start()
        except BaseException:
            self.close()
            raise
        self.log = Log(kind, f"127.0.0.1:{link}")

    def hold_answers(self) -> None:
        """What clients send arrives and is done; they hear nothing of it."""
        self._network.cut_one_way(SERVER, CLIENT)

    def hold_requests(self) -> None:
        self._network.cut_one_way(CLIENT, SERVER)

    def release(self) -> None:
        """What was held up comes now, late."""
        self._network.heal()

    def lose(self) -> None:
        """What was held up never comes: the connections end, and clients dial again."""
        self._network.heal(reset=True)

    def suspend(self) -> None:
        """The broker stands still; what clients send waits for it."""
        if self._kafka is not None:
            self._kafka.suspend()
        elif self._cluster is not None:
            self._cluster.nodes[1].stop()

    def go_on(self) -> None:
        """After `suspend`."""
        if self._kafka is not None:
            self._kafka.go_on()
        elif self._cluster is not None:
            self._cluster.nodes[1].go_on()

    def heal(self) -> None:
        """Whatever was done to it."""
        self.go_on()
        self.lose()

    def close(self) -> None:
        gc.collect()  # clients that are only garbage yet would dial the link while it closes
        self._network.close()
        if self._kafka is not None:
            self._kafka.kill()
        if self._cluster is not None:
            self._cluster.close()
