"""`make bench`: every benchmark of this folder, or those whose names are given."""

import sys
from collections.abc import Callable

from bench import consensus, storage
from bench.rounds import Line, print_report

BENCHMARKS: dict[str, Callable[[], Line]] = {
    "appends": storage.appends,
    "reads": storage.reads,
    "recovery": storage.recovery,
    "step": consensus.step,
    "idle": consensus.idle,
}


def main(names: list[str]) -> int:
    unknown = set(names) - BENCHMARKS.keys()
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    lines: list[Line] = []
    for name in names or BENCHMARKS:
        print(f"{name} …", file=sys.stderr)
        lines.append(BENCHMARKS[name]())
    print_report(lines)
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
