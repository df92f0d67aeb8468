"""docs/operations.md says what is so: its config files can be used, its commands and settings exist."""

import argparse
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cli import COMMANDS, main
from tidelog.cluster.configs import TOPIC_CONFIGS
from tidelog.server.settings import Settings, dotted, load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_config_files_are_those_of_clusters(tmp_path: Path) -> None:
    loaded: list[Settings] = []
    for number, text in enumerate(blocks("toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        loaded.append(load_settings(str(path), {}, {}))
    three, five, added = loaded[:3], loaded[3:8], loaded[8]
    for nodes in (three, five):
        assert [node.node_id for node in nodes] == list(range(1, len(nodes) + 1))
        assert {tuple(node.config_servers) for node in nodes} == {tuple(range(1, len(nodes) + 1))}
        assert {node.rack for node in nodes} == {"east", "west", "north"}
        for node in nodes:
            assert node.config_servers[node.node_id][0] == node.advertised_host
    assert added.node_id not in added.config_servers
    assert added.peer_host == added.advertised_host


def test_settings_that_are_named_exist() -> None:
    known = {dotted(name) for name in Settings.__dataclass_fields__} | set(TOPIC_CONFIGS)
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", PAGE)) - {"client.rack"}
    theirs = {name for name in named if name.startswith(("topic.metadata", "retry.", "reconnect."))}  # librdkafka's
    files = {"backup.json", "groups.json", "manifest.json", "stream.json"}
    assert named - theirs - files <= known


def commands() -> Iterator[str]:
    for block in blocks(""):
        yield from (line.split("#")[0].strip() for line in block.splitlines() if line.startswith("tidelog "))
    yield from re.findall(r"`(tidelog [^`]+)`", PAGE)


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_commands_that_are_named_exist(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are parsed, not run."""
    words = re.sub(r"\[[^\]]*\]", "", command).replace("NAME", "name").split()[1:]
    assert words[0] in COMMANDS

    def refuse(_parser: argparse.ArgumentParser, message: str) -> None:
        assert "required" in message, message  # the page may leave something out, not invent it
        raise KeyboardInterrupt

    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    monkeypatch.setattr(f"tidelog.cli.{words[0]}.run", lambda options: 0, raising=True)
    status: object = 0
    try:
        main(words)
    except SystemExit as ended:  # --help
        status = ended.code
    except KeyboardInterrupt:
        pass
    assert status in (0, None)


def test_the_help_of_a_server_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["server", "--help"])
    shown = capsys.readouterr().out
    for item in dataclasses.fields(Settings):
        assert f"  {dotted(item.name)} = " in shown
