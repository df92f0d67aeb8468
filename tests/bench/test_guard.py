"""The guard fails on a real loss and on nothing else."""

import json
from pathlib import Path

import pytest

from bench import guard
from bench.guard import Cost, closeness, losses
from tidelog.cli import CommandError


@pytest.fixture
def baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"at": "today", "ratios": {"produce, CPU": 0.8}}))
    monkeypatch.setattr(guard, "BASELINE", path)
    return path


def measuring(monkeypatch: pytest.MonkeyPatch, *ratios: float) -> list[float]:
    """What the next measurements give; those that are left over were not asked for."""
    left = list(ratios)
    monkeypatch.setattr(guard, "measure", lambda: {"produce, CPU": left.pop(0)})
    return left


def test_the_best_round_of_each_side_counts():
    noisy = [Cost(9.0, 9.0), Cost(2.0, 4.0), Cost(8.0, 8.0)]
    assert closeness(noisy, [Cost(5.0, 5.0), Cost(1.0, 3.0)]) == {"CPU": 3 / 4, "wall time": 1 / 2}


def test_a_loss_counts_when_it_is_more_than_a_quarter():
    assert losses({"a": 0.8, "b": 0.8, "gone": 1.0}, {"a": 0.61, "b": 0.59, "new": 0.1}) == {"b": pytest.approx(0.2625)}


def test_no_loss_passes_at_once(baseline: Path, monkeypatch: pytest.MonkeyPatch):
    left = measuring(monkeypatch, 0.7, 0.7)
    assert guard.guard() == 0
    assert left == [0.7]


def test_a_loss_that_does_not_show_again_is_noise(baseline: Path, monkeypatch: pytest.MonkeyPatch):
    measuring(monkeypatch, 0.3, 0.75)
    assert guard.guard() == 0


def test_a_loss_that_stays_fails_and_is_named(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    left = measuring(monkeypatch, 0.3, 0.4, 0.5)
    assert guard.guard() == 1
    assert not left
    assert "FAILED: produce, CPU has lost 38%" in capsys.readouterr().out


def test_writing_makes_the_least_of_several_measurements_the_baseline(baseline: Path, monkeypatch: pytest.MonkeyPatch):
    measuring(monkeypatch, 0.6, 0.5, 0.9)
    assert guard.guard(write=True) == 0
    assert json.loads(baseline.read_text())["ratios"] == {"produce, CPU": 0.5}


def test_no_baseline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "BASELINE", tmp_path / "none.json")
    with pytest.raises(CommandError, match="guard --write"):
        guard.guard()


def test_the_baseline_in_the_repository_can_be_read():
    ratios = json.loads(guard.BASELINE.read_text())["ratios"]
    assert ratios
    assert all(ratio > 0 for ratio in ratios.values())
