"""The seeds that every run of the tests lives through. `make sim SEEDS=N` runs more."""

import os
import subprocess
import sys

import pytest

from .runner import run_seed

FAST = range(55)
SLOW = range(55, 1045)
CHUNK = 11  # one of each kind


def survive(seeds: range) -> None:
    failures = [str(result) for result in map(run_seed, seeds) if result.failure]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("first", FAST[::CHUNK])
def test_the_cluster_survives(first: int) -> None:
    survive(range(first, first + CHUNK))


@pytest.mark.slow
@pytest.mark.parametrize("first", SLOW[::CHUNK])
def test_the_cluster_survives_many(first: int) -> None:
    survive(range(first, first + CHUNK))


def test_a_seed_decides_everything() -> None:
    """Two processes that hash strings differently tell the same story, event by event."""
    stories = [
        subprocess.run(
            [sys.executable, "-m", "tests.sim", "--seed", "9"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert stories[0].count(b"\n") > 1000
    assert stories[0] == stories[1]
