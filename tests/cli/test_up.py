"""A real cluster of three, as `tidelog up` starts it."""

import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .command import Tidelog
from .embedded import Up

pytestmark = pytest.mark.slow

WAIT_S_MAX = 60


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    sets = ("storage.segment.bytes=1048576", "group.initial.rebalance.delay.ms=0", "leader.balance.ms=600000")
    arguments = [f"--set={text}" for text in sets]
    up = Up(tmp_path_factory.mktemp("up"), "--port", "0", "--rack", "east,west,north", *arguments)
    yield up
    assert up.stop(signal.SIGINT) == 0, up.log()


@pytest.fixture
def tidelog(up: Up) -> Tidelog:
    return Tidelog(up.bootstrap)


def eventually(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < give_up, f"not so after {WAIT_S_MAX} s: {what}"
        time.sleep(0.1)


def healthy(tidelog: Tidelog) -> bool:
    return tidelog.run("cluster", "status").status == 0


def leaders(tidelog: Tidelog, stream: str) -> list[int]:
    return [row["leader"] for row in tidelog.succeed("stream", "describe", stream, "--json").parsed["partitions"]]


def test_three_nodes_that_are_one_cluster(up: Up, tidelog: Tidelog) -> None:
    assert up.ready == f"ready nodes=3 bootstrap={up.bootstrap} dir={up.folder / 'data'}\n"
    eventually(lambda: healthy(tidelog), "the cluster is healthy")
    status = tidelog.succeed("cluster", "status", "--json").parsed
    assert [(node["node"], node["rack"], node["config"]) for node in status["nodes"]] == [
        (1, "east", "voter"),
        (2, "west", "voter"),
        (3, "north", "voter"),
    ]
    assert sorted(node["address"] for node in status["nodes"]) == sorted(up.bootstrap.split(","))


def test_a_stream_is_on_three_nodes_and_changes_its_leader_when_told(tidelog: Tidelog) -> None:
    tidelog.succeed("stream", "create", "moved", "--partitions", "3")
    described = tidelog.succeed("stream", "describe", "moved", "--json").parsed
    assert [sorted(row["voters"]) for row in described["partitions"]] == [[1, 2, 3]] * 3
    assert sorted(leaders(tidelog, "moved")) == [1, 2, 3]
    tidelog.succeed("cluster", "transfer-leader", "moved", "--to", "2")
    eventually(lambda: leaders(tidelog, "moved") == [2, 2, 2], "node 2 leads all")
    assert "TERM" in tidelog.succeed("stream", "describe", "moved").out.decode()


def test_a_node_that_is_killed_is_started_again(up: Up, tidelog: Tidelog) -> None:
    tidelog.succeed("stream", "create", "survivor")
    tidelog.succeed("produce", "survivor", stdin=b"before\n")
    victim = leaders(tidelog, "survivor")[0]
    before = up.nodes()[victim]
    up.kill_node(victim)
    tidelog.succeed("produce", "survivor", stdin=b"after\n")
    eventually(lambda: up.nodes().get(victim, before) != before, "it runs again")
    assert f"node {victim} was killed by SIGKILL; it is started again in 0.25 s\n" in up.log()
    eventually(lambda: healthy(tidelog), "the cluster is healthy again")
    assert tidelog.succeed("consume", "survivor", "--exit").lines == [b"before", b"after"]


def test_backup_and_restore_of_a_cluster_that_serves(tidelog: Tidelog, tmp_path: Path) -> None:
    folder = str(tmp_path / "backup")
    first = b"".join(b"%d %s\n" % (i, b"x" * 500) for i in range(6_000))
    second = b"".join(b"%d more\n" % i for i in range(1_000))
    tidelog.succeed("stream", "create", "kept", "--partitions", "2", "--config", "retention.ms=-1")
    for partition in ("0", "1"):
        tidelog.succeed("produce", "kept", "--partition", partition, "--codec", "none", stdin=first)
    done = tidelog.succeed("backup", "kept", "--to", folder, "--json").parsed
    assert done["streams"] == [{"stream": "kept", "partitions": 2, "records": 12_000, "complete": True}]
    tidelog.succeed("stream", "trim", "kept", "--before", "10", "--partition", "0")
    tidelog.succeed("produce", "kept", "--partition", "0", stdin=second)
    again = tidelog.succeed("backup", "kept", "--to", folder, "--json").parsed
    assert again["streams"][0]["records"] == 13_000
    assert again["bytes_read"] < done["bytes_read"] / 2, "closed segments are not read again"
    assert any(tmp_path.rglob("*.log"))
    tidelog.succeed("verify", "--backup", folder)
    tidelog.succeed("stream", "delete", "kept")
    tidelog.succeed("restore", "--from", folder, "kept", "kept=twin")
    for name in ("kept", "twin"):
        assert tidelog.succeed("consume", name, "--partition", "0", "--exit").out == first + second
        assert tidelog.succeed("consume", name, "--partition", "1", "--exit").out == first
    tidelog.succeed("produce", "twin", "--partition", "1", stdin=b"new\n")
    records = tidelog.succeed("consume", "twin", "--partition", "1", "--from", "5999", "--exit", "--json").parsed_lines
    assert [record["offset"] for record in records] == [5_999, 6_000]
    assert "0 records were written" in tidelog.succeed("restore", "--from", folder, "kept").out.decode()


def test_verify_compares_replicas(tidelog: Tidelog) -> None:
    tidelog.succeed("stream", "create", "compared", "--partitions", "2")
    tidelog.succeed("produce", "compared", stdin=b"".join(b"%d\n" % i for i in range(5_000)))
    found = tidelog.succeed("verify", "compared", "--json").parsed
    assert found["problems"] == []
    assert found["partitions"] == 2
    assert found["bytes"] > 0


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


def test_one_node_alone_comes_back_with_its_records(tmp_path: Path) -> None:
    up = Up(tmp_path, "--nodes", "1", "--port", "0")
    tidelog = Tidelog(up.bootstrap)
    tidelog.succeed("stream", "create", "kept")
    tidelog.succeed("produce", "kept", stdin=b"a\n")
    assert up.stop() == 0
    up = Up(tmp_path, "--port", "0")  # as many as there are
    assert "nodes=1" in up.ready
    assert Tidelog(up.bootstrap).succeed("consume", "kept", "--exit").out == b"a\n"
    up.kill()


def test_demo_tells_its_story_and_ends() -> None:
    ended = Tidelog("-").run("demo", "--exit")
    assert ended.status == 0, ended
    assert "all there, once, in order" in ended.out.decode()
