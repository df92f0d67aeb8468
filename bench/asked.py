"""What is asked of a cluster through Kafka's protocol before something is measured, Tidelog's or Kafka's alike."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from bench.frames import latest_offsets, metadata_of
from bench.processes import Program

HOME_S_MAX = 15.0  # a leader should have been moved home by then
HOME_POLL_S = 0.2


class AskedCluster(ABC):
    programs: dict[int, Program]
    """Those that run."""

    @abstractmethod
    def ask(self, request: object, node: int | None = None) -> Any:
        """One request to one node, or to any, over a connection of its own."""

    @abstractmethod
    def leader_of(self, topic: str) -> int:
        """Of partition 0; a node that runs."""

    def all_lead(self, topics: Sequence[str]) -> bool:
        """Whether every partition has a leader that knows it is: nobody else answers for the latest offset."""
        led_by: dict[int, dict[str, list[int]]] = {}
        for topic in self.ask(metadata_of(topics)).topics:
            assert not topic.error_code, f"{topic.name} is not known: error {topic.error_code}"
            for partition in topic.partitions:
                led_by.setdefault(partition.leader_id, {}).setdefault(topic.name, []).append(partition.partition_index)
        if not led_by.keys() <= self.programs.keys():
            return False
        return all(
            not partition.error_code
            for node, partitions in led_by.items()
            for topic in self.ask(latest_offsets(partitions), node).topics
            for partition in topic.partitions
        )

    def await_home(self, topic: str) -> None:
        """Wait for the leaders to be where they are meant to be, or they would move while something is measured."""
        deadline = time.monotonic() + HOME_S_MAX
        while time.monotonic() < deadline:
            partitions = self.ask(metadata_of([topic])).topics[0].partitions
            if all(partition.leader_id == partition.replica_nodes[0] for partition in partitions):
                return
            time.sleep(HOME_POLL_S)

    def latest_offset(self, topic: str) -> int:
        """Of partition 0."""
        partition = self.ask(latest_offsets({topic: [0]}), self.leader_of(topic)).topics[0].partitions[0]
        assert not partition.error_code, f"{topic} has no latest offset: error {partition.error_code}"
        return partition.offset
