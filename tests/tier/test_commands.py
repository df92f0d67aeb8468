"""`tidelog tier` as a user runs it, against a node of its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tier.processes import TOPIC, TieredProcesses
from tidelog.cli import main


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[TieredProcesses]:
    made = TieredProcesses(tmp_path, nodes=1)
    try:
        yield made
    finally:
        made.close()


class Tidelog:
    def __init__(self, processes: TieredProcesses, capsys: pytest.CaptureFixture[str]) -> None:
        self._processes = processes
        self._capsys = capsys

    def __call__(self, *arguments: str, status: int = 0) -> str:
        assert main(["tier", *arguments, "--bootstrap", self._processes.cluster.bootstrap]) == status
        return self._capsys.readouterr().out

    def parsed(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status))


def test_status_scrub_and_recover(processes: TieredProcesses, capsys: pytest.CaptureFixture[str]) -> None:
    tidelog = Tidelog(processes, capsys)
    processes.cluster.start()
    assert tidelog("status") == "no stream is tiered\n"
    processes.start_topic()
    processes.write(180)
    processes.wait_tiered(100)

    (row,) = tidelog.parsed("status")
    assert (row["stream"], row["start_offset"], row["high_watermark"]) == (TOPIC, 0, 180)
    shown = tidelog("status", TOPIC)
    assert f"{TOPIC}:0" in shown
    assert "CACHE HITS" in shown

    copied = processes.status()["copied_until"]
    assert tidelog("attach", TOPIC, "--as", "shown").startswith("shown shows history-")
    (attached,) = tidelog.parsed("status", "shown")
    assert attached["high_watermark"] >= copied
    tidelog("attach", TOPIC, "--as", "shown", status=1)

    orphan = next(processes.store.rglob("*.log")).with_name(f"{5:020d}-{'A' * 22}.log")
    orphan.write_bytes(b"left")
    assert "nobody knows of" in tidelog("scrub")
    assert orphan.exists()
    assert "removed" in tidelog("scrub", "--remove")
    assert not orphan.exists()
    assert "all in order" in tidelog("scrub", "--read")
    (processes.store / "notes").mkdir()
    (processes.store / "notes" / "x").write_bytes(b"12345")
    assert "notes is not a topic's: 1 objects, 5 bytes" in tidelog("scrub")
    assert tidelog.parsed("scrub", "--remove-folder", "notes")["strays"] == []

    copied = processes.status()["copied_until"]
    processes.cluster.terminate()
    processes.cluster.nodes[1].wipe()
    processes.cluster.start()
    assert tidelog("recover") == f"recovered: {TOPIC}\n"
    assert processes.check_every_offset() == (0, copied)
    assert "nothing is in the store" in tidelog("recover")

    path = next(processes.store.rglob("*.log"))
    content = bytearray(path.read_bytes())
    content[1_000] ^= 1
    path.write_bytes(content)
    found = tidelog.parsed("scrub", "--read", status=1)
    assert "checksum" in found["problems"][0]
    path.unlink()
    assert "is missing" in tidelog("scrub", status=1)
