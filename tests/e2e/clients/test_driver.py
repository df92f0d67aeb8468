"""The test bed's own promise: a driver that misbehaves fails its test in time, and says why."""

import sys
from collections.abc import Callable, Iterator

import pytest

from .driver import Driver, DriverFailed, Refused

Script = Callable[[str], Driver]


@pytest.fixture
def script() -> Iterator[Script]:
    started: list[Driver] = []

    def start(source: str) -> Driver:
        started.append(Driver("script", [sys.executable, "-c", source]))
        return started[-1]

    yield start
    for driver in started:
        driver.close()


def test_answer_comes_back(script: Script) -> None:
    driver = script("""input(); print('{"ok": {"x": 1}}', flush=True); input()""")

    assert driver.call("hello", timeout_s=30) == {"x": 1}


def test_driver_that_hangs_is_killed_and_its_stderr_shown(script: Script) -> None:
    driver = script(
        "import sys, time; print('stuck', file=sys.stderr, flush=True); print('x', end=''); time.sleep(600)"
    )

    with pytest.raises(DriverFailed, match="did not answer hello within 2 s"):
        driver.call("hello", timeout_s=2)
    assert not driver.alive
    assert "stuck" in driver.stderr_tail()


def test_driver_that_dies_is_noticed_at_once(script: Script) -> None:
    driver = script("import sys; input(); sys.exit('no more')")

    with pytest.raises(DriverFailed, match=r"(?s)ended during hello.*no more"):
        driver.call("hello", timeout_s=600)
    with pytest.raises(DriverFailed, match="is gone, before poll"):
        driver.call("poll", timeout_s=600)


def test_bug_of_a_driver_is_not_taken_for_a_refusal(script: Script) -> None:
    driver = script("""input(); print('{"bug": "KeyError"}', flush=True); input()""")

    with pytest.raises(DriverFailed, match="failed at hello: KeyError"):
        driver.call("hello", timeout_s=30)


def test_refusal_has_its_code(script: Script) -> None:
    driver = script("""input(); print('{"error": {"code": 3, "message": "unknown"}}', flush=True); input()""")

    with pytest.raises(Refused) as refused:
        driver.call("hello", timeout_s=30)
    assert refused.value.code == 3
