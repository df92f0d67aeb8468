"""`tidelog demo`: the whole story, and what is told of it where it cannot be told."""

import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.cli import CommandError, demo_history, demo_pipeline
from tidelog.cli.demo_history import Read, summed
from tidelog.cli.demo_pipeline import Outcome, show
from tidelog.cli.demo_processes import Child, SampleMaster

STORY_S_MAX = 900
GOOD = Outcome(
    commands_in=7, events_out=9, set_aside=1, lost=0, duplicated=0, disordered=0, keys=5, differences=()
)  # fmt: skip


@pytest.mark.long
def test_the_whole_story_is_told_and_everything_is_there(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")
    told = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", "demo", "--exit", "--dir", str(tmp_path)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STORY_S_MAX, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told
    assert "all there, once, in order" in told.stdout
    assert "table equals source: yes" in told.stdout
    assert "history equals what was acknowledged: yes, 60,000 records" in told.stdout
    assert " 0 bytes of it through a node" in told.stdout
    assert "all of it took " in told.stdout


def test_without_the_clone_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_pipeline, "ROOT", tmp_path)
    assert "clone" in demo_pipeline.what_is_missing()


def test_without_spark_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_pipeline, "WANTED", ("json", "no_such_package_at_all"))
    assert demo_pipeline.what_is_missing().startswith("no_such_package_at_all not installed")


def test_without_java_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_pipeline, "WANTED", ())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Spark needs Java" in demo_pipeline.what_is_missing()


def test_a_good_outcome_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(GOOD, 321.4)
    shown = capsys.readouterr().out
    assert "table equals source: yes, 5 keys" in shown
    assert " 321 " in shown


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": 1},
        {"duplicated": 1},
        {"disordered": 1},
        {"differences": ("db0: ('string', b'k') is missing",)},
    ],
)
def test_anything_wrong_is_the_demos_failure(wrong: dict[str, object]) -> None:
    outcome = Outcome(**{**{name: getattr(GOOD, name) for name in GOOD.__slots__}, **wrong})  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="what came out is not what went in"):
        show(outcome, 0)


def test_history_that_equals_what_was_written_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    written = summed([(0, b"a"), (1, b"b"), (0, b"c")])
    demo_history.show(Read(summed([(1, b"b"), (0, b"c"), (0, b"a")]), seconds=1.0, through_brokers=0), written)
    assert "history equals what was acknowledged: yes, 3 records" in capsys.readouterr().out


@pytest.mark.parametrize("found", [[(0, b"a")], [(0, b"a"), (0, b"x")], [(0, b"a"), (1, b"b")]])
def test_history_that_differs_is_the_demos_failure(found: list[tuple[int, bytes]]) -> None:
    with pytest.raises(CommandError, match="acknowledged were"):
        demo_history.show(Read(summed(found), 1.0, 0), summed([(0, b"a"), (0, b"b")]))


def test_a_child_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    child = Child("broken", tmp_path, [sys.executable, "-c", "import sys; sys.exit('something about disks')"])
    child.process.wait(30)
    with pytest.raises(CommandError, match=r"broken ended with status 1:\nsomething about disks"):
        _ = child.ended


def test_a_master_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"(?s)did not start.*--nonsense"):
        SampleMaster(tmp_path, "--nonsense")
