"""The streams that the cluster wants on this node, and no others: begun, filled, given their settings, dropped.

The cluster's state says who holds a stream. Each of its changes comes here for the streams it names (`settle`); after a
restart, or when changes were missed, everything is looked at (`settle_all`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.cluster import CLUSTER_STREAM, Partition, Topic
from tidelog.server.filler import Filler
from tidelog.server.replica import Replica

if TYPE_CHECKING:
    from tidelog.server.broker import Broker


class AssignedStreams:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._node = broker.node
        self._me = broker.settings.node_id
        self.filler = Filler(broker)

    def close(self) -> None:
        self.filler.close()

    def settle_all(self) -> None:
        """Have every stream that belongs here, and no other: commands may have been missed."""
        wanted = {CLUSTER_STREAM}
        for topic in list(self._broker.state.topics.values()):
            wanted.update(partition.stream for partition in topic.partitions)
            self.settle(topic, topic.partitions)
        for stream in self._node.streams_on_disk:
            if stream not in wanted:
                self._node.drop(stream)  # deleted while this node was away
        self._node.abandon_fillings(self.filler.wanted)

    def settle(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Have those of a topic's streams that belong here, with its settings."""
        node, me = self._node, self._me
        config = self._broker.config_of(topic)
        for partition in partitions:
            replica = node.replicas.get(partition.stream)
            if replica is not None:
                replica.config, replica.internal = config, topic.internal
                if me not in partition.replicas and me not in partition.members:
                    node.drop(partition.stream)  # its group has let go of this node
            elif me not in partition.replicas or me in partition.absent:
                continue
            elif me in partition.newcomers:
                self.filler.want(partition.stream)
            else:
                replica = node.begin(partition.stream, partition.initial, config, partition.start_offset)
                replica.config, replica.internal = config, topic.internal

    def filled(self, stream: int, replica: Replica) -> None:
        """A newcomer has begun its stream."""
        found = self._broker.state.partition_of(stream)
        if found is None:
            self._node.drop(stream)
            return
        topic = found[0]
        replica.config, replica.internal = self._broker.config_of(topic), topic.internal
        self._broker.coordinators.carried()
