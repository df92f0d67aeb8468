"""What `tidelog bench` understands, and what its parts are told."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import kafka_server, load_client
from bench.kept import Unavailable, kept
from bench.side_by_side import ROWS, chosen
from bench.side_by_side_cluster import parse_performance
from tidelog.cli import main


def run(*arguments: str) -> int:
    return main(["bench", *arguments])


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("", list(ROWS)),
        ("failover,produce-1k", ["produce-1k", "failover"]),
        ("raw", ["raw-64k", "raw-1m", "raw-read"]),
        (" catch-up ,", ["catch-up"]),
    ],
)
def test_rows_are_chosen_by_name_or_beginning_in_the_order_of_the_table(only: str, names: Sequence[str]):
    assert chosen(only, ROWS) == names


def test_an_unknown_row_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]):
    assert run("--only", "produce-2k") == 1
    assert "there is no produce-2k; there are produce-1k, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("subcommand", "known"), [((), "streams-1000"), (("growth",), "log-length"), (("vdl",), "read")]
)
def test_list_shows_what_there_is(subcommand: Sequence[str], known: str, capsys: pytest.CaptureFixture[str]):
    assert run(*subcommand, "--only", "list") == 0
    assert known in capsys.readouterr().out.split()


def test_an_option_may_stand_before_the_subcommand(capsys: pytest.CaptureFixture[str]):
    assert run("--only", "list", "vdl") == 0
    assert "write-100" in capsys.readouterr().out.split()


def test_every_node_of_kafka_is_told_of_all_and_of_the_replication():
    told = kafka_server.properties(2, {1: 11, 2: 12, 3: 13}, {1: 21, 2: 22, 3: 23}, "/data", {"flush.ms": 1})
    assert told["controller.quorum.voters"] == "1@127.0.0.1:21,2@127.0.0.1:22,3@127.0.0.1:23"
    assert told["listeners"] == "PLAINTEXT://127.0.0.1:12,CONTROLLER://127.0.0.1:22"
    assert (told["default.replication.factor"], told["min.insync.replicas"], told["flush.ms"]) == (3, 2, 1)


def test_javas_tool_is_understood_by_its_last_line():
    said = (
        "50 records sent, 10.0 records/sec (1.00 MB/sec), 9.0 ms avg latency, 10.0 ms max latency.\n"
        "100 records sent, 99.5 records/sec (2.00 MB/sec), 3.00 ms avg latency, 9.00 ms max latency, "
        "3 ms 50th, 291 ms 95th, 541 ms 99th, 600 ms 99.9th.\n"
    )
    outcome = parse_performance(said)
    assert outcome.mb_per_s == pytest.approx(2 * 1.048576)
    assert outcome.latencies_ms == {"p50": 3, "p95": 291, "p99": 541}


def test_without_maven_it_is_said_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TIDELOG_CLIENTS_DIR", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mvn" else f"/bin/{name}")
    with pytest.raises(Unavailable, match="install Maven"):
        kafka_server.libraries()
    assert [path.name for path in tmp_path.iterdir()] == [".gitignore"], "nothing half-made is kept"


def test_without_a_compiler_the_python_client_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    client = load_client.load_client(str(tmp_path))
    assert client.command == (load_client.PYTHON_TWIN,)
    assert "there is no C compiler" in client.name


def test_what_is_kept_is_made_once_and_anew_when_it_is_made_from_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TIDELOG_CLIENTS_DIR", str(tmp_path))
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "content").write_text("whole")

    first, again, other = (kept("thing", source, make) for source in (b"a", b"a", b"b"))
    assert first == again != other
    assert len(made) == 2
    assert (other / "content").read_text() == "whole"
