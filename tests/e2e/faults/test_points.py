"""Fault points: what each action does, that they cost nothing when off, and that each one listed is in the code."""

import errno
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tidelog import faults
from tidelog.faults import Action, FaultError, parse_action

SOURCES = Path(tidelog.__file__).parent


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    yield
    faults.clear()


def points_in_code() -> set[str]:
    """Where a point stands; each look is guarded by the one switch."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if path != Path(faults.__file__):
            found |= set(re.findall(r'faults\.hit\(\s*"([^"]+)"', path.read_text()))
    return found


def test_every_point_of_the_list_is_in_the_code_and_no_other() -> None:
    assert points_in_code() == set(faults.POINTS)


def test_every_look_at_a_point_is_guarded() -> None:
    for path in SOURCES.rglob("*.py"):
        if path == Path(faults.__file__):
            continue
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "faults.hit(" in line:
                assert "faults.ARMED" in line or "faults.ARMED" in lines[number - 1], f"{path}:{number + 1}"


def test_points_are_off_in_a_process_that_was_not_started_for_them() -> None:
    assert faults.ARMED is False


def test_delay_sleeps() -> None:
    faults.arm("disk.sync", Action("delay", delay_ms=50))
    began = time.monotonic()

    assert faults.hit("disk.sync") is False
    assert time.monotonic() - began >= 0.05


def test_error_raises_it() -> None:
    faults.arm("disk.write", parse_action("error:ENOSPC"))

    with pytest.raises(OSError, match=r"fault point disk\.write") as raised:
        faults.hit("disk.write")
    assert raised.value.errno == errno.ENOSPC


def test_drop_tells_the_caller_to_leave_it_out() -> None:
    faults.arm("peers.send", Action("drop"))

    assert faults.hit("peers.send") is True
    assert faults.hit("peers.receive") is False


def test_skip_and_count_bound_what_happens() -> None:
    faults.arm("peers.send", Action("drop", skip=2, count=3))

    assert [faults.hit("peers.send") for _ in range(7)] == [False, False, True, True, True, False, False]


def test_hang_lasts_until_it_is_disarmed() -> None:
    faults.arm("replica.apply", Action("hang"))
    waiting = threading.Thread(target=faults.hit, args=("replica.apply",), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()

    faults.disarm("replica.apply")

    waiting.join(10)
    assert not waiting.is_alive()


def test_crash_ends_the_process_at_once() -> None:
    program = "from tidelog import faults; faults.hit('disk.sync'); faults.hit('disk.sync'); print('alive')"
    result = run_python(program, "disk.sync=crash,skip:1")

    assert (result.returncode, result.stdout) == (faults.CRASH_STATUS, "")


def test_environment_arms_points() -> None:
    result = run_python("from tidelog import faults; print(faults.ARMED, faults.hit('peers.send'))", "peers.send=drop")

    assert result.stdout == "True True\n"


def test_empty_environment_lets_points_be_set_later() -> None:
    program = """
from tidelog import faults
print(faults.ARMED, faults.hit("peers.send"))
print(faults.command({"point": "peers.send", "action": "drop"}), faults.hit("peers.send"))
print(faults.command({"point": "peers.send"}), faults.hit("peers.send"))
print(faults.command({"clear": True}), faults.ARMED)
"""
    assert run_python(program, "").stdout.splitlines() == [
        "True False",
        "{'armed': {'peers.send': 'drop'}, 'hits': {'peers.send': 0}} True",
        "{'armed': {}, 'hits': {'peers.send': 1}} False",
        "{'armed': {}, 'hits': {}} True",
    ]


def run_python(program: str, environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCES.parent), "TIDELOG_FAULTS": environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_command_is_refused_in_a_process_that_was_not_started_for_it() -> None:
    with pytest.raises(FaultError, match="fault points are off"):
        faults.command({"point": "peers.send", "action": "drop"})


@pytest.mark.parametrize("text", ["", "explode", "delay", "delay:x", "error:NOSUCH", "drop,often:3", "drop,skip:x"])
def test_action_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(FaultError):
        parse_action(text)


def test_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FaultError, match="no fault point"):
        faults.arm("disk.melt", Action("drop"))
