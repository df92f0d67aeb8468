"""A node with two data folders, as an operator has it: written, killed, started again, checked, and short of a disk."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.cli import main
from tidelog.cli.link import Link
from tidelog.server.settings import Settings, SettingsError, load_settings
from tidelog.wire.messages import DescribeLogDirsRequest

from .command import Tidelog
from .server import Server

PARTITIONS = 5
LINES = [b"%d" % number for number in range(50)]
FAIL_S_MAX = 60


def test_a_node_with_two_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / "disk-1", tmp_path / "disk-2"]
    setting = f"log.dirs={','.join(map(str, folders))}"
    server = Server(tmp_path, setting)
    try:
        Tidelog(server.bootstrap).succeed("stream", "create", "orders", "--partitions", str(PARTITIONS))
        Tidelog(server.bootstrap).succeed("produce", "orders", "--key-separator", ":", stdin=_keyed(LINES))
    finally:
        server.kill()
    held = [len(list(folder.glob("streams/[0-9]*"))) for folder in folders]
    assert held == [3, 3]  # with the cluster's own

    server = Server(tmp_path, setting)
    try:
        found = Tidelog(server.bootstrap).succeed("consume", "orders", "--exit")
        assert sorted(found.lines) == sorted(LINES)
        described = _log_dirs(server.bootstrap)
    finally:
        server.stop()
    assert described.keys() == set(map(str, folders))
    assert sorted(described.values()) == [2, 3]

    assert main(["verify", *(f"--dir={folder}" for folder in folders), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["streams"] > PARTITIONS  # with the cluster's and the groups'
    assert main(["verify", f"--dir={folders[0]}"]) == 1
    assert f"the folder {folders[1]} (id" in capsys.readouterr().out

    shutil.rmtree(folders[1])
    command = [sys.executable, "-m", "tidelog.cli", "server", f"--set={setting}", "--set=port=0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=FAIL_S_MAX, check=False)
    assert ended.returncode == 1
    assert f"node 1 cannot start: the folder {folders[1]} (id" in ended.stderr
    assert not folders[1].exists()


def _keyed(lines: list[bytes]) -> bytes:
    return b"".join(b"%s:%s\n" % (line, line) for line in lines)


def _log_dirs(bootstrap: str) -> dict[str, int]:
    """How many of the partitions each folder holds, as Kafka's tools see it."""
    host, _, port = bootstrap.partition(":")
    link = Link(host, int(port))
    try:
        answer = link.ask(DescribeLogDirsRequest(topics=None))
    finally:
        link.close()
    assert all(result.total_bytes > result.usable_bytes > 0 for result in answer.results)
    return {
        result.log_dir: sum(len(topic.partitions) for topic in result.topics if topic.name == "orders")
        for result in answer.results
    }


@pytest.mark.parametrize("text", ['log.dirs = "/one, /two"', 'log.dirs = ["/one", "/two"]'])
def test_log_dirs_names_all_folders_and_the_first_is_data_dir(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    settings = load_settings(str(path), {}, {})
    assert (settings.folders, settings.data_dir) == (("/one", "/two"), "/one")
    assert load_settings(str(path), {}, {"data.dir": "/one"}) == settings
    with pytest.raises(SettingsError, match=r"data\.dir is '/two'; it must be the first of log\.dirs"):
        load_settings(str(path), {"TIDELOG_DATA_DIR": "/two"}, {})


def test_without_log_dirs_there_is_one_folder() -> None:
    assert load_settings(None, {}, {"data.dir": "/one"}).folders == ("/one",)
    assert Settings(data_dir="here").folders == ("here",)
