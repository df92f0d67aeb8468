"""Environments of clients are made once, kept while their pins stay, and not tried twice in one run."""

from pathlib import Path

import pytest

from . import environments
from .environments import Unavailable, environment


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pins of an environment `some`."""
    monkeypatch.setenv("TIDELOG_CLIENTS_DIR", str(tmp_path / "clients"))
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "run 1")
    monkeypatch.setattr(environments, "DRIVERS", tmp_path)
    pins = tmp_path / "pins" / "some"
    pins.mkdir(parents=True)
    (pins / "versions").write_text("1")
    return pins


def test_environment_is_made_once_and_again_when_its_pins_change(pins: Path) -> None:
    made: list[str] = []

    def make(folder: Path) -> None:
        made.append((folder / "versions").read_text())

    first = environment("some", make)
    assert environment("some", make) == first
    (pins / "versions").write_text("2")
    environment("some", make)

    assert made == ["1", "2"]


def test_environment_that_cannot_be_made_is_tried_again_only_in_the_next_run(
    pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Path] = []

    def fail(folder: Path) -> None:
        tries.append(folder)
        raise Unavailable("no network")

    for _ in range(2):
        with pytest.raises(Unavailable, match="no network"):
            environment("some", fail)
    assert len(tries) == 1

    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "run 2")
    with pytest.raises(Unavailable, match="no network"):
        environment("some", fail)
    assert len(tries) == 2


def test_half_made_environment_is_not_taken_for_whole(pins: Path) -> None:
    def stop_halfway(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environment("some", stop_halfway)
    folder = environment("some", lambda _: None)

    assert not (folder / "half").exists()
