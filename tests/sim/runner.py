"""Runs seeds: one, or a range over several processes. A seed that fails prints itself, why, and how to see it again."""

import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice

from .history import Violation
from .server_parts import small_server
from .world import Story, World

SEEDS_A_TASK = 10


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    story: Story
    failure: str | None = None

    def __str__(self) -> str:
        if self.failure is None:
            return f"seed {self.seed}: {self.story}"
        return (
            f"seed {self.seed} FAILS ({self.story.mix})\n{self.failure}\nagain: python -m tests.sim --seed {self.seed}"
        )


def run_seed(seed: int, *, trace: bool = False) -> Result:
    """Live through one seed's world. With `trace` every event is printed as it happens."""
    world = World(seed, trace=print if trace else None)
    try:
        with small_server():
            world.run()
    except Violation as violation:
        return Result(seed, world.story, f"  {violation}\n  after {world.story.events} events, at {world.now_text}")
    except Exception:  # noqa: BLE001 any error of the product is a finding, and the seed must be told
        return Result(seed, world.story, traceback.format_exc())
    return Result(seed, world.story)


def run_seeds(seeds: Iterable[int], *, processes: int = 2) -> Iterator[Result]:
    """The results of many seeds, in order."""
    with ProcessPoolExecutor(processes) as pool:
        for results in pool.map(_run_task, _tasks(seeds)):
            yield from results


def _run_task(seeds: list[int]) -> list[Result]:
    return [run_seed(seed) for seed in seeds]


def _tasks(seeds: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(seeds)
    while task := list(islice(rest, SEEDS_A_TASK)):
        yield task
