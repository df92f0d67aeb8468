"""python -m tests.sim: run many seeds, or one again with its trace."""

import argparse
import sys
import time

from .runner import run_seed, run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, help="run this one alone and print every event")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        result = run_seed(arguments.seed, trace=True)
        print(result)
        return 1 if result.failure else 0
    return _run_many(range(arguments.first, arguments.first + arguments.seeds), arguments.processes)


def _run_many(seeds: range, processes: int) -> int:
    started = time.monotonic()
    failed, events, acknowledged = 0, 0, 0
    for result in run_seeds(seeds, processes=processes):
        events += result.story.events
        acknowledged += result.story.acknowledged
        if result.failure:
            failed += 1
            print(result, flush=True)
    seconds = time.monotonic() - started
    print(
        f"{len(seeds)} seeds, {failed} failed; {events:,} events, {acknowledged:,} acknowledged writes, {seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
