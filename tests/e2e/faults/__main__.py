"""`python -m tests.e2e.faults`: every scenario, in random order, again and again for as long as asked."""

import argparse
import random
import signal
import sys
import time
from collections import defaultdict

from .runner import Outcome, run
from .scenarios import SCENARIOS, Scenario


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="begin no scenario after so long (default 10)")
    parser.add_argument("--rounds", type=int, help="run every scenario so often, however long that takes")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the order and of all choices")
    parser.add_argument("--only", default="", help="scenarios whose title (name / target) contains this")
    parser.add_argument("--story", action="store_true", help="tell what was done when, also where all went well")
    parser.add_argument("--list", action="store_true", help="list the scenarios and end")
    options = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if options.only in scenario.title]
    if options.list:
        print("\n".join(f"{scenario.title}{'  (make test)' if scenario.short else ''}" for scenario in chosen))
        return 0
    if not chosen:
        print(f"no scenario is called {options.only!r}; --list lists them", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _end)
    outcomes = play(chosen, options.seed, options.rounds, options.minutes, options.story)
    print(table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _end(_number: int, _frame: object) -> None:
    """Told to stop: end in order, which leaves no nodes behind, and do not let a second signal get in the way."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def play(chosen: list[Scenario], seed: int, rounds: int | None, minutes: float, story: bool) -> list[Outcome]:
    outcomes: list[Outcome] = []
    deadline_s = time.monotonic() + minutes * 60
    number = 0
    while rounds is None or number < rounds:
        order = list(chosen)
        random.Random(seed + number).shuffle(order)
        for scenario in order:
            if rounds is None and time.monotonic() > deadline_s:
                return outcomes
            outcome = run(scenario, seed + number)
            outcomes.append(outcome)
            verdict = "ok" if outcome.passed else "FAILED"
            print(
                f"{verdict:6} {scenario.title:48} {outcome.acknowledged:6} acknowledged, "
                f"longest gap {outcome.gap_ms:6} ms, {outcome.seconds:5.1f} s",
                flush=True,
            )
            if not outcome.passed:
                print(outcome.report(), flush=True)
            elif story:
                print("\n".join(outcome.story), flush=True)
        number += 1
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.scenario.name, outcome.scenario.target].append(outcome)
    lines = [
        f"{'scenario':48} {'target':14} {'rounds':>6} {'acknowledged':>12} {'longest gap ms':>14}  verdict",
        "-" * 108,
    ]
    for (name, target), found in sorted(groups.items()):
        failed = sum(not outcome.passed for outcome in found)
        lines.append(
            f"{name:48} {target:14} {len(found):6} {sum(outcome.acknowledged for outcome in found):12} "
            f"{max(outcome.gap_ms for outcome in found):14}  {f'{failed} FAILED' if failed else 'ok'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
