"""A real cluster, as `tidelog up` starts it: four nodes, of which three are config servers."""

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli import main

from .command import Tidelog
from .embedded import Up

pytestmark = pytest.mark.slow

WAIT_S_MAX = 60


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    sets = ("storage.segment.bytes=1048576", "group.initial.rebalance.delay.ms=0", "leader.balance.ms=500")
    arguments = [f"--set={text}" for text in sets]
    up = Up(tmp_path_factory.mktemp("up"), "--nodes", "4", "--port", "0", "--rack", "east,west,north", *arguments)
    yield up
    assert up.stop(signal.SIGINT) == 0, up.log()


@pytest.fixture
def tidelog(up: Up, capsys: pytest.CaptureFixture[str]) -> "Inside":
    return Inside(up.bootstrap, capsys)


class Inside:
    """Commands run in this process, which need not import everything each time; those that read stdin, in their own."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys

    def __call__(self, *arguments: str) -> str:
        self._capsys.readouterr()
        status = main([*arguments, "--bootstrap", self.bootstrap])
        captured = self._capsys.readouterr()
        assert status == 0, captured
        return captured.out

    def parsed(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def produce(self, stream: str, lines: bytes, *arguments: str) -> None:
        Tidelog(self.bootstrap).succeed("produce", stream, *arguments, stdin=lines)


def eventually(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < give_up, f"not so after {WAIT_S_MAX} s: {what}"
        time.sleep(0.1)


def healthy(tidelog: Inside) -> bool:
    return main(["cluster", "status", "--bootstrap", tidelog.bootstrap]) == 0


def leaders(tidelog: Inside, stream: str) -> list[int]:
    return [row["leader"] for row in tidelog.parsed("stream", "describe", stream)["partitions"]]


def test_four_nodes_that_are_one_cluster(up: Up, tidelog: Inside) -> None:
    assert up.ready == f"ready nodes=4 bootstrap={up.bootstrap} dir={up.folder / 'data'}\n"
    eventually(lambda: healthy(tidelog), "the cluster is healthy")
    status = tidelog.parsed("cluster", "status")
    assert [(node["node"], node["rack"], node["config"]) for node in status["nodes"]] == [
        (1, "east", "voter"),
        (2, "west", "voter"),
        (3, "north", "voter"),
        (4, "east", "learner"),
    ]
    assert sorted(node["address"] for node in status["nodes"]) == sorted(up.bootstrap.split(","))


def test_leaders_go_where_they_are_told(tidelog: Inside) -> None:
    tidelog("stream", "create", "moved", "--partitions", "3")
    rows = tidelog.parsed("stream", "describe", "moved")["partitions"]
    assert [len(row["voters"]) for row in rows] == [3, 3, 3]
    assert len(set(leaders(tidelog, "moved"))) == 3
    transfer = ["cluster", "transfer-leader", "moved:0", "--to", str(rows[0]["replicas"][1])]
    eventually(lambda: main([*transfer, "--bootstrap", tidelog.bootstrap]) == 0, "the leader has reported itself")

    def term() -> int:
        return tidelog.parsed("stream", "describe", "moved")["partitions"][0]["term"]

    eventually(lambda: term() > rows[0]["term"], "another term has begun")


def test_replicas_go_where_they_are_told(tidelog: Inside) -> None:
    tidelog("stream", "create", "placed", "--partitions", "2")
    tidelog.produce("placed", b"a\nb\nc\n")
    tidelog("stream", "alter", "placed", "--nodes", "4,2,3")

    def placed() -> bool:
        rows = tidelog.parsed("stream", "describe", "placed")["partitions"]
        return all((row["leader"], sorted(row["voters"])) == (4, [2, 3, 4]) for row in rows)

    eventually(placed, "node 4 leads, with 2 and 3")
    assert sorted(tidelog("consume", "placed", "--exit").split()) == ["a", "b", "c"]


def test_a_node_that_is_killed_is_started_again(up: Up, tidelog: Inside) -> None:
    tidelog("stream", "create", "survivor")
    tidelog.produce("survivor", b"before\n")
    victim = leaders(tidelog, "survivor")[0]
    before = up.nodes()[victim]
    up.kill_node(victim)
    tidelog.produce("survivor", b"after\n")
    eventually(lambda: up.nodes().get(victim, before) != before, "it runs again")
    assert f"node {victim} was killed by SIGKILL; it is started again in 0.25 s\n" in up.log()
    eventually(lambda: healthy(tidelog), "the cluster is healthy again")
    assert tidelog("consume", "survivor", "--exit") == "before\nafter\n"


def test_backup_and_restore_of_a_cluster_that_serves(tidelog: Inside, tmp_path: Path) -> None:
    folder = str(tmp_path / "backup")
    first = b"".join(b"%d %s\n" % (i, b"x" * 500) for i in range(6_000))
    second = b"".join(b"%d more\n" % i for i in range(1_000))
    tidelog("stream", "create", "kept", "--partitions", "2")
    tidelog.produce("kept", first, "--partition", "0", "--codec", "none")
    tidelog.produce("kept", second, "--partition", "1")
    tidelog("stream", "trim", "kept", "--before", "3", "--partition", "1")  # within a batch
    done = tidelog.parsed("backup", "kept", "--to", folder)
    assert done["streams"] == [{"stream": "kept", "partitions": 2, "records": 6_997, "complete": True}]
    assert any(tmp_path.rglob("*.log"))
    tidelog("stream", "trim", "kept", "--before", "10", "--partition", "0")
    tidelog.produce("kept", second, "--partition", "0")
    again = tidelog.parsed("backup", "kept", "--to", folder)
    assert again["streams"][0]["records"] == 7_997
    assert again["bytes_read"] < done["bytes_read"] / 2, "closed segments are not read again"
    tidelog("verify", "--backup", folder)
    tidelog("stream", "delete", "kept")
    tidelog("restore", "--from", folder, "kept", "kept=twin")
    assert tidelog("consume", "twin", "--partition", "0", "--exit").encode() == first + second
    assert tidelog("consume", "kept", "--partition", "1", "--exit").encode() == second[len(b"0 more\n") * 3 :]
    assert "0 records were written" in tidelog("restore", "--from", folder, "kept")
    tidelog.produce("twin", b"new\n", "--partition", "0")
    records = tidelog("consume", "twin", "--partition", "0", "--from", "6999", "--exit", "--json").splitlines()
    assert [json.loads(record)["offset"] for record in records] == [6_999, 7_000]
    found = tidelog.parsed("verify", "twin")
    assert found["problems"] == []
    assert found["partitions"] == 2
    assert found["bytes"] > len(first)


def test_a_node_is_removed_with_everything_moved_off_it(up: Up, tidelog: Inside) -> None:
    tidelog("stream", "create", "staying", "--partitions", "4")
    tidelog.produce("staying", b"a\nb\nc\n")
    eventually(lambda: healthy(tidelog), "the cluster is healthy")
    assert tidelog("cluster", "remove-node", "4", "--timeout", str(WAIT_S_MAX)).startswith("removed node 4: ")
    eventually(lambda: 4 not in up.nodes(), "the removed node has ended")
    eventually(lambda: "node 4 was removed from the cluster; it is not started again\n" in up.log(), "up says so")
    rows = tidelog.parsed("stream", "describe", "staying")["partitions"]
    assert [sorted(row["voters"]) for row in rows] == [[1, 2, 3]] * 4
    assert [node["node"] for node in tidelog.parsed("cluster", "nodes")] == [1, 2, 3]
    assert sorted(tidelog("consume", "staying", "--exit").split()) == ["a", "b", "c"]


def test_an_address_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = Tidelog("-").fail("up", "--nodes", "1", "--port", str(port), "--dir", str(tmp_path / "data"))
    assert line.startswith(f"cannot listen on 127.0.0.1:{port} (Address already in use): ")
    assert not (tmp_path / "data").exists()


def test_fewer_nodes_than_the_folder_has(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"node-{number}").mkdir()
    line = Tidelog("-").fail("up", "--nodes", "1", "--port", "0", "--dir", str(tmp_path))
    assert "holds a cluster of 3 nodes, which 1 cannot run" in line


def test_one_node_alone_comes_back_with_its_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up = Up(tmp_path, "--nodes", "1", "--port", "0")
    tidelog = Inside(up.bootstrap, capsys)
    tidelog("stream", "create", "kept")
    tidelog.produce("kept", b"a\n")
    folder = str(tmp_path / "data" / "node-1")
    assert main(["verify", "--dir", folder]) == 1
    assert "in use by another process" in capsys.readouterr().err
    assert up.stop() == 0, up.log()
    assert main(["verify", "--dir", folder]) == 0
    up = Up(tmp_path, "--port", "0")  # as many as there are
    assert "nodes=1" in up.ready
    assert Inside(up.bootstrap, capsys)("consume", "kept", "--exit") == "a\n"
    up.kill()
    state = max((tmp_path / "data" / "node-1" / "streams").iterdir()) / "stream.json"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    assert main(["verify", "--dir", folder]) == 1
    assert "stream.json" in capsys.readouterr().out


def test_demo_tells_its_story_and_ends() -> None:
    ended = Tidelog("-").run("demo", "--exit", "--log-only")  # the rest is in test_demo.py
    assert ended.status == 0, ended
    assert "all there, once, in order" in ended.out.decode()
