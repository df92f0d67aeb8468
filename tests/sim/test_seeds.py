"""The seeds that every run of the tests lives through. `make sim SEEDS=N` runs more."""

import pytest

from .runner import run_seed

FAST = range(60)
CHUNK = 20
SLOW = range(60, 1060)


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
    for seed in FAST[:5]:
        assert run_seed(seed).story == run_seed(seed).story
