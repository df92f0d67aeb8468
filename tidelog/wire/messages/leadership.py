"""Who leads a partition now, and where that node listens (KIP-951).

Answers to Produce and Fetch carry both as tagged fields when the client asked the wrong node, which saves it a trip for
metadata.
"""

from tidelog.wire.codec import int32, string, table


@table
class LeaderIdAndEpoch:
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@table
class NodeEndpoint:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)
