"""`tidelog cluster` against a cluster that is as the test says."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.cli import main
from tidelog.wire.errors import ErrorCode

from .command import one_line
from .fake_cluster import FakeCluster, Refuse


class Run:
    def __init__(self, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster = cluster
        self._capsys = capsys

    def __call__(self, *arguments: str, status: int = 0) -> str:
        assert main([*arguments, "--bootstrap", self._cluster.bootstrap]) == status
        captured = self._capsys.readouterr()
        return captured.err if status and not captured.out else captured.out

    def parsed(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status))


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def tidelog(fake: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(fake, capsys)


def test_status_of_a_healthy_cluster(fake: FakeCluster, tidelog: Run) -> None:
    fake.topic("orders", 2)
    fake.racks = {1: "east", 2: "west"}
    text = tidelog("cluster", "status")
    assert text.endswith("\nhealthy\n")
    assert "config servers  1, 2, 3\npartitions      2\n" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("2 "))
    assert row.split()[2:] == ["west", "alive", "config,data", "voter", "2", "0"]
    parsed = tidelog.parsed("cluster", "status")
    assert parsed["healthy"] is True
    assert [node["leaders"] for node in parsed["nodes"]] == [2, 0, 0]


def test_status_says_what_is_wrong_and_fails(fake: FakeCluster, tidelog: Run) -> None:
    orders, idle = fake.topic("orders")[0], fake.topic("idle")[0]
    fake.dead.add(1)
    idle.leader = 2
    idle.replicas, idle.voters = [2, 3], [2]
    text = tidelog("cluster", "status", status=1)
    assert "node 1 does not answer" in text
    assert "1 of 2 partitions without a leader" in text
    assert "2 of 2 partitions with fewer voting replicas than it shall have: orders:0, idle:0" in text
    parsed = tidelog.parsed("cluster", "status", status=1)
    assert parsed["leaderless"] == ["orders:0"]
    assert orders.leader == 1


def test_nodes(tidelog: Run) -> None:
    assert tidelog("cluster", "nodes").splitlines()[0].split()[0] == "NODE"
    assert [node["state"] for node in tidelog.parsed("cluster", "nodes")] == ["alive"] * 3


def test_transfer_leader_of_one_partition_and_of_all(fake: FakeCluster, tidelog: Run) -> None:
    rows = fake.topic("orders", 3)
    assert tidelog("cluster", "transfer-leader", "orders:1", "--to", "2") == "orders:1 is led by node 2\n"
    assert [row.leader for row in rows] == [1, 2, 1]
    assert "orders:1 is led by node 2 already\n" in tidelog("cluster", "transfer-leader", "orders", "--to", "2")
    assert [row.leader for row in rows] == [2, 2, 2]


def test_transfer_leader_to_a_node_without_a_replica(fake: FakeCluster, tidelog: Run) -> None:
    fake.topic("orders")[0].replicas = [1, 2]
    line = one_line(tidelog("cluster", "transfer-leader", "orders", "--to", "3", status=1))
    assert line == "node 3 holds no replica of orders:0: the replicas are on 1, 2"


def test_transfer_leader_of_what_is_not_there(fake: FakeCluster, tidelog: Run) -> None:
    fake.topic("orders")
    assert "there is no stream other" in tidelog("cluster", "transfer-leader", "other", "--to", "2", status=1)
    assert "has no partition 4" in tidelog("cluster", "transfer-leader", "orders:4", "--to", "2", status=1)


def test_balance(tidelog: Run) -> None:
    assert tidelog("cluster", "balance") == "2 leaders are moved, 1 replicas\n"


def test_remove_node_drains_waits_and_removes(fake: FakeCluster, tidelog: Run) -> None:
    fake.config_nodes = [1, 2, 3]
    fake.nodes[4] = type(fake.nodes[1])(fake, 4)
    row = fake.topic("orders")[0]
    looks = 0

    def move_meanwhile(node: int, request: Any) -> None:
        nonlocal looks
        looks += getattr(request, "method", "") == "streams"
        if looks == 2 and 3 in fake.draining:
            row.replicas = row.voters = [1, 2, 4]

    fake.before = move_meanwhile
    assert tidelog("cluster", "remove-node", "3").startswith("removed node 3: ")
    names = [name for name, _ in fake.calls]
    assert names.index("drain-node") < names.index("config-nodes") < names.index("remove-node")
    assert fake.config_nodes == [1, 2, 4]
    assert 3 not in fake.nodes


def test_remove_node_can_be_given_again_after_its_time_was_up(fake: FakeCluster, tidelog: Run) -> None:
    fake.config_nodes = [1, 2]
    row = fake.topic("orders")[0]
    line = tidelog("cluster", "remove-node", "3", "--timeout", "0.1", status=1).splitlines()[-1]
    assert "node 3 still has 1 replicas after 0.1 s (orders:0)" in line
    row.replicas = row.voters = [1, 2]
    tidelog("cluster", "remove-node", "3")
    assert [name for name, _ in fake.calls].count("drain-node") == 1


def test_remove_node_can_be_given_again_with_force(fake: FakeCluster, tidelog: Run) -> None:
    fake.config_nodes = [1, 2]
    fake.draining.add(3)
    row = fake.topic("orders")[0]
    row.replicas = row.voters = [1, 2]
    tidelog("cluster", "remove-node", "3", "--force")
    assert ("drain-node", {"node": 3, "draining": True, "force": True}) in fake.calls


def test_remove_node_does_not_leave_two_config_servers_unless_forced(fake: FakeCluster, tidelog: Run) -> None:
    line = one_line(tidelog("cluster", "remove-node", "3", status=1))
    assert "2 would be left, of which none may fail" in line
    assert fake.config_nodes == [1, 2, 3]
    tidelog("cluster", "remove-node", "3", "--force")
    assert fake.config_nodes == [1, 2]
    assert ("remove-node", {"node": 3, "force": True}) in fake.calls


def test_add_node_takes_back_a_drain_and_makes_a_config_server(fake: FakeCluster, tidelog: Run) -> None:
    fake.draining.add(3)
    fake.config_nodes = [1, 2]
    tidelog("cluster", "add-node", "3")
    assert not fake.draining
    assert fake.config_nodes == [1, 2]
    assert "config servers are 1, 2, 3" in tidelog("cluster", "add-node", "3", "--config")


@pytest.mark.parametrize("action", ["add-node", "remove-node"])
def test_unknown_node(tidelog: Run, action: str) -> None:
    assert one_line(tidelog("cluster", action, "9", status=1)) == "there is no node 9: see `tidelog cluster nodes`"


def test_a_refusal_is_one_line(fake: FakeCluster, tidelog: Run) -> None:
    def refuse(node: int, request: Any) -> None:
        if getattr(request, "method", "") == "balance":
            raise Refuse(ErrorCode.INVALID_REQUEST, "two\nlines")

    fake.before = refuse
    assert one_line(tidelog("cluster", "balance", status=1)) == "two lines"


def test_what_is_only_for_now_is_tried_again(fake: FakeCluster, tidelog: Run) -> None:
    left = 4

    def no_controller_yet(node: int, request: Any) -> None:
        nonlocal left
        left -= hasattr(request, "method")
        if left > 0 and hasattr(request, "method"):
            raise Refuse(ErrorCode.NOT_CONTROLLER)

    fake.before = no_controller_yet
    tidelog("cluster", "nodes")


def test_other_nodes_are_asked_when_the_first_is_gone(fake: FakeCluster, tidelog: Run) -> None:
    fake.nodes[1].close()
    tidelog("cluster", "nodes")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["as Kafka", "as a web server"])
def test_a_server_that_is_no_tidelog(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                if connection.recv(1 << 16):
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert main(["cluster", "status", "--bootstrap", address]) == 1
        server.shutdown(socket.SHUT_RDWR)
    assert one_line(capsys.readouterr().err).startswith(f"{address} is not a Tidelog node")


def test_no_controller(fake: FakeCluster, tidelog: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(node: int, request: Any) -> None:
        if getattr(request, "method", "") == "cluster":
            raise Refuse(ErrorCode.NOT_CONTROLLER)

    monkeypatch.setattr("tidelog.cli.cluster.STATUS_S_MAX", 0.1)
    fake.before = refuse
    assert one_line(tidelog("cluster", "status", status=1)).startswith("there is no controller: ")


def test_a_node_that_hangs_is_not_waited_for_long(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cli.admin.PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]},{fake.bootstrap}"
        assert main(["cluster", "nodes", "--bootstrap", address]) == 0
