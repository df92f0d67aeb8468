"""`tidelog server`: one node, with settings from a file."""

import json
from pathlib import Path

import pytest

from tidelog.cli import main
from tidelog.server.settings import SettingsError, load_settings

from .command import one_line
from .server import Server


def test_a_node_takes_its_settings_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'node.id = 7\nrack = "east"\nport = 0\ndata.dir = "{tmp_path / "here"}"\n')
    server = Server(tmp_path, config=config)
    try:
        assert main(["cluster", "nodes", "--json", "--bootstrap", server.bootstrap]) == 0
        (node,) = json.loads(capsys.readouterr().out)
        assert (node["node"], node["rack"]) == (7, "east")
        server.stop()
    finally:
        server.kill()
    assert any((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "node.toml"),
        ("node.id = ", "node.toml"),
        ('node.id = "first"', "node.id"),
        ("node.number = 1", "node.number"),
    ],
)
def test_a_file_that_is_no_use_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    config = tmp_path / "node.toml"
    if text is not None:
        config.write_text(text)
    assert main(["server", "--config", str(config)]) == 1
    assert said in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("nodes", ["", "1@here:1,2@there:1,3@elsewhere:1"])
def test_a_node_that_keeps_the_clusters_log_needs_the_role_for_it(nodes: str) -> None:
    with pytest.raises(SettingsError, match="need the role config"):
        load_settings(None, {}, {"node.id": "2", "roles": "data", "cluster.nodes": nodes})
    assert load_settings(None, {}, {"node.id": "2", "roles": "config", "cluster.nodes": nodes}).role_names == (
        "config",
    )


def test_a_node_that_only_holds_streams_is_not_listed() -> None:
    settings = load_settings(None, {}, {"node.id": "4", "roles": "data", "cluster.nodes": "1@here:1"})
    assert settings.role_names == ("data",)
