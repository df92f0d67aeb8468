"""A cluster that answers what the commands ask, from a model that a test sets up: three nodes on one thread each.

Real clusters cannot be made to cut their segments differently, or to die in the middle of a file, when a test wants it.
"""

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from crc32c import crc32c

from tidelog.wire import messages as m
from tidelog.wire.batch import build_own_batch, read_header, split_batches, stamp
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import decode_request, encode_response
from tidelog.wire.records import Record, build_batch

_SIZE = struct.Struct(">i")
NO_OP = 1


class Refuse(Exception):
    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Hang(Exception):
    """End the connection instead of answering."""


@dataclass
class FakePartition:
    stream: int
    leader: int = 1
    replicas: list[int] = field(default_factory=lambda: [1, 2, 3])
    voters: list[int] = field(default_factory=lambda: [1, 2, 3])
    start: int = 0
    first: int = 0
    batches: list[bytes] = field(default_factory=list)
    cuts: dict[int, list[int]] = field(default_factory=dict)  # node -> numbers of batches at which segments begin
    damaged: dict[int, int] = field(default_factory=dict)  # node -> number of a batch it has otherwise

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.first

    def append(self, batch: bytes | bytearray) -> int:
        base = self.end
        stamped = bytearray(batch)
        stamp(stamped, base, 7)
        self.batches.append(bytes(stamped))
        return base

    def write(self, *values: str, **options: Any) -> None:
        self.append(build_batch([Record(value.encode(), timestamp=1000) for value in values], **options))

    def write_own(self) -> None:
        self.batches.append(bytes(build_own_batch(NO_OP, b"", self.end, 7)))

    def segments(self, node: int) -> list[tuple[int, bytes]]:
        """(number of the first batch, data) of each closed one; the last cut begins the active segment."""
        cuts = self.cuts.get(node, [])
        return [(begin, b"".join(self.batches[begin:end])) for begin, end in zip([0, *cuts], cuts, strict=False)]


@dataclass
class FakeTopic:
    partitions: list[FakePartition]
    configs: dict[str, str] = field(default_factory=dict)
    id: UUID = field(default_factory=uuid4)


class FakeCluster:
    def __init__(self, nodes: int = 3) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.groups: dict[str, dict[tuple[str, int], int]] = {}
        self.dead: set[int] = set()
        self.draining: set[int] = set()
        self.config_nodes = list(range(1, nodes + 1))
        self.calls: list[tuple[str, Any]] = []
        self.read_bytes = 0
        self.before: Callable[[int, object], None] = lambda node, request: None  # may raise Refuse or Hang
        self.nodes = {number: FakeNode(self, number) for number in range(1, nodes + 1)}
        self.racks: dict[int, str] = {}
        self.lock = threading.Lock()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def topic(self, name: str, partitions: int = 1, **options: Any) -> list[FakePartition]:
        made = [FakePartition(100 * len(self.topics) + i + 1) for i in range(partitions)]
        self.topics[name] = FakeTopic(made, **options)
        return made

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()


class FakeNode:
    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self._cluster = cluster
        self._number = number
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # closed already
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as incoming:
            while head := incoming.read(4):
                header, request = decode_request(incoming.read(_SIZE.unpack(head)[0]))
                if self._number in self._cluster.dead:
                    return
                try:
                    with self._cluster.lock:
                        self._cluster.before(self._number, request)
                        answer = getattr(self, "_" + type(request).__name__)(request)
                except Refuse as refuse:
                    answer = _REFUSALS[type(request)](refuse)
                except Hang:
                    return
                with suppress(OSError):  # the client has gone
                    connection.sendall(b"".join(encode_response(header, answer)))

    def _partition(self, topic: str, partition: int) -> FakePartition:
        try:
            return self._cluster.topics[topic].partitions[partition]
        except (KeyError, IndexError):
            raise Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None

    # --- Tidelog's own ---

    def _TidelogAdminRequest(self, request: m.TidelogAdminRequest) -> object:  # noqa: N802
        content = json.loads(request.content)
        content.pop("timeout_ms", None)
        self._cluster.calls.append((request.method, content))
        answer = getattr(self, "_do_" + request.method.replace("-", "_"))(**content)
        return m.TidelogAdminResponse(content=json.dumps(answer))

    def _do_cluster(self) -> object:
        cluster = self._cluster
        rows = [row for topic in cluster.topics.values() for row in topic.partitions]
        return {
            "cluster_id": "fake",
            "controller": min(set(cluster.nodes) - cluster.dead),
            "founded": True,
            "config_nodes": cluster.config_nodes,
            "nodes": [
                {
                    "node": number,
                    "host": "127.0.0.1",
                    "port": node.port,
                    "rack": cluster.racks.get(number),
                    "roles": ["config", "data"],
                    "alive": number not in cluster.dead,
                    "draining": number in cluster.draining,
                    "config": "voter" if number in cluster.config_nodes else "learner",
                    "replicas": sum(number in row.replicas for row in rows),
                    "leaders": sum(number == row.leader for row in rows),
                }
                for number, node in cluster.nodes.items()
            ],
        }

    def _do_streams(self, topic: str | None = None) -> object:
        if topic is not None and topic not in self._cluster.topics:
            raise Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {topic}")
        return {
            "streams": [
                {
                    "topic": name,
                    "partition": number,
                    "stream": row.stream,
                    "leader": row.leader,
                    "term": 7,
                    "replicas": row.replicas,
                    "voters": row.voters,
                    "learners": [],
                    "absent": [],
                }
                for name, each in self._cluster.topics.items()
                if topic in (None, name)
                for number, row in enumerate(each.partitions)
            ]
        }

    def _do_transfer_leader(self, topic: str, partition: int, target: int) -> object:
        self._partition(topic, partition).leader = target
        return {}

    def _do_reassign(self, topic: str, partition: int, replicas: list[int], force: bool) -> object:
        row = self._partition(topic, partition)
        row.replicas = row.voters = replicas
        return {}

    def _do_balance(self) -> object:
        return {"transfers": 2, "moves": 1}

    def _do_drain_node(self, node: int, draining: bool, force: bool) -> object:
        (self._cluster.draining.add if draining else self._cluster.draining.discard)(node)
        return {}

    def _do_config_nodes(self, nodes: list[int], force: bool) -> object:
        self._cluster.config_nodes = nodes
        return {}

    def _do_remove_node(self, node: int, force: bool) -> object:
        del self._cluster.nodes[node]
        return {}

    def _do_segments(self, topic: str, partition: int) -> object:
        row = self._partition(topic, partition)
        listed: list[dict[str, int]] = []
        for begin, data in row.segments(self._number):
            places = list(split_batches(data))
            listed.append(
                {
                    "first_index": begin + 1,
                    "last_index": begin + len(places),
                    "base_offset": read_header(data).base_offset,
                    "next_offset": read_header(data, places[-1][0]).next_offset,
                    "length": len(data),
                }
            )
        return {"stream": row.stream, "start_offset": row.start, "high_watermark": row.end, "segments": listed}

    def _do_checksum(self, topic: str, partition: int, start: int, end: int) -> object:
        row = self._partition(topic, partition)
        if start < row.start:
            raise Refuse(ErrorCode.OFFSET_OUT_OF_RANGE)
        crc = size = count = 0
        reached = start
        for number, batch in enumerate(row.batches):
            header = read_header(batch)
            if header.next_offset > start and header.base_offset < end and not header.is_ours:
                crc = crc32c(batch if row.damaged.get(self._number) != number else batch[::-1], crc)
                size += len(batch)
                count += 1
                reached = header.next_offset
        return {"start": start, "end": reached, "crc": crc, "batches": count, "bytes": size}

    def _do_create_restored(self, topic: str, configs: dict[str, str], start_offsets: list[int]) -> object:
        if topic in self._cluster.topics:
            raise Refuse(ErrorCode.TOPIC_ALREADY_EXISTS)
        for row, offset in zip(
            self._cluster.topic(topic, len(start_offsets), configs=configs), start_offsets, strict=True
        ):
            row.first = row.start = offset
        return {}

    def _ReadSegmentRequest(self, request: m.ReadSegmentRequest) -> object:  # noqa: N802
        for topic in self._cluster.topics.values():
            for row in topic.partitions:
                if row.stream == request.stream:
                    for begin, data in row.segments(self._number):
                        if begin + 1 == request.first_index:
                            piece = data[request.position :][: request.length]
                            self._cluster.read_bytes += len(piece)
                            return m.ReadSegmentResponse(data=piece)
        raise Refuse(ErrorCode.OFFSET_OUT_OF_RANGE)

    # --- Kafka's ---

    def _ApiVersionsRequest(self, request: m.ApiVersionsRequest) -> object:  # noqa: N802
        return m.ApiVersionsResponse()

    def _MetadataRequest(self, request: m.MetadataRequest) -> object:  # noqa: N802
        topics = self._cluster.topics
        wanted = list(topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        return m.MetadataResponse(
            topics=[
                m.MetadataResponseTopic(
                    name=name,
                    topic_id=topics[name].id,
                    partitions=[
                        m.MetadataResponsePartition(partition_index=i) for i in range(len(topics[name].partitions))
                    ],
                )
                if name in topics
                else m.MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for name in wanted
            ]
        )

    def _DescribeConfigsRequest(self, request: m.DescribeConfigsRequest) -> object:  # noqa: N802
        configs = self._cluster.topics[request.resources[0].resource_name].configs
        entries = [m.DescribeConfigsEntry(name=name, value=value, config_source=1) for name, value in configs.items()]
        entries.append(m.DescribeConfigsEntry(name="compression.type", value="producer", config_source=5))
        return m.DescribeConfigsResponse(results=[m.DescribeConfigsResult(configs=entries)])

    def _IncrementalAlterConfigsRequest(self, request: m.IncrementalAlterConfigsRequest) -> object:  # noqa: N802
        for resource in request.resources:
            configs = self._cluster.topics[resource.resource_name].configs
            for entry in resource.configs:
                if entry.value is None:
                    configs.pop(entry.name, None)
                else:
                    configs[entry.name] = entry.value
        return m.IncrementalAlterConfigsResponse(responses=[m.AlterConfigsResponseResource()])

    def _ListGroupsRequest(self, request: m.ListGroupsRequest) -> object:  # noqa: N802
        groups = self._cluster.groups if self._number == 1 else {}
        return m.ListGroupsResponse(groups=[m.ListedGroup(group_id=group) for group in groups])

    def _FindCoordinatorRequest(self, request: m.FindCoordinatorRequest) -> object:  # noqa: N802
        return m.FindCoordinatorResponse(coordinators=[m.Coordinator(node_id=1, error_message=None)])

    def _OffsetFetchRequest(self, request: m.OffsetFetchRequest) -> object:  # noqa: N802
        topics = [
            m.OffsetFetchResponseTopic(
                name=topic,
                partitions=[
                    m.OffsetFetchResponsePartition(partition_index=partition, committed_offset=offset, metadata="")
                ],
            )
            for (topic, partition), offset in self._cluster.groups[request.groups[0].group_id].items()
        ]
        return m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(topics=topics)])

    def _OffsetCommitRequest(self, request: m.OffsetCommitRequest) -> object:  # noqa: N802
        group = self._cluster.groups.setdefault(request.group_id, {})
        for topic in request.topics:
            for each in topic.partitions:
                group[topic.name, each.partition_index] = each.committed_offset
        return m.OffsetCommitResponse()

    def _FetchRequest(self, request: m.FetchRequest) -> object:  # noqa: N802
        asked = request.topics[0]
        wanted = asked.partitions[0]
        row = self._partition(asked.topic, wanted.partition)
        answer = m.FetchResponsePartition(partition_index=wanted.partition, high_watermark=row.end)
        if row.leader != self._number:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not row.start <= wanted.fetch_offset <= row.end:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            found = [batch for batch in row.batches if read_header(batch).next_offset > wanted.fetch_offset]
            answer.records = b"".join(found[:3])
        topic = m.FetchResponseTopic(topic=asked.topic, partitions=[answer])
        return m.FetchResponse(responses=[topic])

    def _ListOffsetsRequest(self, request: m.ListOffsetsRequest) -> object:  # noqa: N802
        asked = request.topics[0]
        row = self._partition(asked.name, asked.partitions[0].partition_index)
        offset = row.end if asked.partitions[0].timestamp == -1 else row.start
        answer = m.ListOffsetsResponsePartition(offset=offset)
        return m.ListOffsetsResponse(topics=[m.ListOffsetsResponseTopic(name=asked.name, partitions=[answer])])

    def _ProduceRequest(self, request: m.ProduceRequest) -> object:  # noqa: N802
        asked = request.topic_data[0]
        data = asked.partition_data[0]
        row = self._partition(asked.name, data.index)
        answer = m.ProduceResponsePartition(index=data.index)
        if row.leader != self._number:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            answer.base_offset = row.append(bytes(data.records or b""))
        return m.ProduceResponse(responses=[m.ProduceResponseTopic(name=asked.name, partition_responses=[answer])])

    def _DeleteRecordsRequest(self, request: m.DeleteRecordsRequest) -> object:  # noqa: N802
        asked = request.topics[0]
        row = self._partition(asked.name, asked.partitions[0].partition_index)
        row.start = asked.partitions[0].offset
        answer = m.DeleteRecordsResponsePartition(low_watermark=row.start)
        return m.DeleteRecordsResponse(topics=[m.DeleteRecordsResponseTopic(name=asked.name, partitions=[answer])])


_REFUSALS: dict[type, Callable[[Refuse], object]] = {
    m.TidelogAdminRequest: lambda refuse: m.TidelogAdminResponse(
        error_code=refuse.code, error_message=refuse.message or None
    ),
    m.ReadSegmentRequest: lambda refuse: m.ReadSegmentResponse(error_code=refuse.code),
}
