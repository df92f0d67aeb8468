"""A cluster as Tidelog's own requests show it (TidelogAdmin, ReadSegment): what `tidelog cluster`, `backup`, `restore`
and `verify` work with.

A question is put to any node, which forwards it where it belongs; questions about one node's own replicas are put to
that node. What is only for now (no controller yet, a node that is gone) is tried again, elsewhere if possible, for
`ANSWER_S_MAX`; every other refusal is one line.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

from tidelog.cli import CommandError
from tidelog.cli.client import ANSWER_S_MAX, no_cluster, split_addresses
from tidelog.cli.link import ConnectionEnded, Link, NotTidelog, Unreachable
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import ApiVersionsRequest, TidelogAdminRequest

RETRY_S = 0.1
PROBE_S = 3.0  # for a new connection's first answer, which costs a node nothing: one that hangs is not waited for long
CHANGE_S_MAX = 40.0  # for a change, which takes a node up to 30 s before it gives up
NO_NODE = -1

_FOR_NOW = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Refused(CommandError):
    """A node's answer is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def for_now(self) -> bool:
        return self.code in _FOR_NOW


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as the controller knows it."""

    node: int
    host: str
    port: int
    rack: str | None
    roles: tuple[str, ...]
    alive: bool
    draining: bool
    config: str  # what it is in the cluster's own log: voter, learner or none
    replicas: int
    leaders: int


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition as its leader last reported it."""

    topic: str
    partition: int
    stream: int
    leader: int
    term: int
    replicas: tuple[int, ...]  # what shall be
    voters: tuple[int, ...]  # what is
    learners: tuple[int, ...]
    absent: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.topic}:{self.partition}"


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str
    controller: int
    founded: bool
    config_nodes: tuple[int, ...]
    nodes: tuple[NodeRow, ...]

    def node(self, number: int) -> NodeRow | None:
        return next((row for row in self.nodes if row.node == number), None)


class Admin:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._known = split_addresses(bootstrap)
        self._links: dict[tuple[str, int], Link] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._proven = False  # that these are Tidelog nodes

    # --- any node ---

    def call(self, method: str, timeout_s: float = ANSWER_S_MAX, **content: object) -> Any:
        content["timeout_ms"] = int(
            timeout_s * 800
        )  # the node's answer, that it took too long, comes before our patience ends
        request = TidelogAdminRequest(method=method, content=json.dumps(content))
        return _content(self.ask(request, timeout_s=timeout_s, retried=_for_now))

    def change(self, method: str, **content: object) -> Any:
        return self.call(method, CHANGE_S_MAX, **content)

    def ask(self, request: object, *, timeout_s: float = ANSWER_S_MAX, retried: Any = None) -> Any:
        """The answer of any node; while `retried` says so of an answer, that of the next one."""
        give_up = time.monotonic() + timeout_s
        failures: list[CommandError] = []
        while True:
            answer = None
            for place in list(self._known):
                try:
                    answer = self._ask_at(place, request, timeout_s)
                except ConnectionEnded as error:
                    strange = isinstance(request, TidelogAdminRequest) and not self._proven
                    failures.append(_no_answer(place) if strange else error)
                except (NotTidelog, Unreachable) as error:
                    failures.append(error)
                else:
                    self._proven = True
                    if retried is None or not retried(answer):
                        return answer
            if answer is None:  # nobody is there: as quickly said as seen
                for failure in failures:
                    if isinstance(failure, NotTidelog):
                        raise failure
                raise no_cluster(self.bootstrap, str(failures[-1]).removeprefix(f"{self.bootstrap}: "))
            if time.monotonic() >= give_up:
                return answer
            time.sleep(RETRY_S)

    # --- one node ---

    def call_node(self, node: int, method: str, timeout_s: float = ANSWER_S_MAX, **content: object) -> Any:
        request = TidelogAdminRequest(method=method, content=json.dumps(content))
        return _content(self.ask_node(node, request, timeout_s=timeout_s))

    def ask_node(self, node: int, request: object, *, timeout_s: float = ANSWER_S_MAX) -> Any:
        return self._ask_at(self.address(node), request, timeout_s)

    def address(self, node: int) -> tuple[str, int]:
        if node not in self._addresses:
            self.cluster()
        if node not in self._addresses:
            raise CommandError(f"there is no node {node}: see `tidelog cluster nodes`")
        return self._addresses[node]

    def connect(self, node: int) -> Link:
        """A connection of one's own."""
        return Link(*self.address(node))

    def _ask_at(self, place: tuple[str, int], request: object, timeout_s: float) -> Any:
        link = self._links.pop(place, None)
        if link is not None:
            try:
                answer = link.ask(request, timeout_s=timeout_s)
            except ConnectionEnded:
                pass  # it may have ended long ago: a new one tells
            else:
                self._links[place] = link
                return answer
        link = Link(*place, timeout_s=PROBE_S)
        link.ask(ApiVersionsRequest(client_software_name="tidelog-cli", client_software_version="0"), timeout_s=PROBE_S)
        answer = link.ask(request, timeout_s=timeout_s)
        self._links[place] = link
        return answer

    # --- what there is ---

    def cluster(self, timeout_s: float = ANSWER_S_MAX) -> ClusterView:
        try:
            found = self.call("cluster", timeout_s)
        except Refused as error:
            if not error.for_now:
                raise
            raise Refused(
                error.code,
                "there is no controller: fewer than a majority of the config servers can talk to each other. Streams "
                "that have a majority go on; nothing can be changed until config servers are back",
            ) from None
        nodes = tuple(
            NodeRow(
                row["node"], row["host"], row["port"], row["rack"], tuple(row["roles"]), row["alive"], row["draining"],
                row["config"], row["replicas"], row["leaders"],
            )
            for row in found["nodes"]
        )  # fmt: skip
        self._addresses = {row.node: (row.host, row.port) for row in nodes}
        for row in nodes:
            place = (row.host, row.port)
            if row.alive and place not in self._known:
                self._known.append(place)
        return ClusterView(
            found["cluster_id"], found["controller"], found["founded"], tuple(found["config_nodes"]), nodes
        )

    def partitions(self, topic: str | None = None) -> list[PartitionRow]:
        found = self.call("streams") if topic is None else self.call("streams", topic=topic)
        return [
            PartitionRow(
                row["topic"], row["partition"], row["stream"], row["leader"], row["term"], tuple(row["replicas"]),
                tuple(row["voters"]), tuple(row["learners"]), tuple(row["absent"]),
            )
            for row in found["streams"]
        ]  # fmt: skip

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


def _no_answer(place: tuple[str, int]) -> CommandError:
    """Kafka ends the connection when it is asked something it does not know; so does a Tidelog node that stops."""
    address = f"{place[0]}:{place[1]}"
    try:
        Link(*place).close()
    except Unreachable as error:
        return error
    return NotTidelog(address)


def _for_now(answer: Any) -> bool:
    return answer.error_code in _FOR_NOW


def _content(answer: Any) -> Any:
    if answer.error_code:
        raise Refused(answer.error_code, reason(answer.error_code, answer.error_message))
    return json.loads(answer.content or "{}")


def reason(code: int, message: str | None = None) -> str:
    """An error for the user."""
    if message:
        return " ".join(message.split())
    try:
        return ErrorCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"error {code}"
