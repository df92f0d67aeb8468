"""`make bench`: every benchmark of this folder, or those whose names are given."""

import signal
import sys
from collections.abc import Callable

from bench import broker, consensus, node, server, storage
from bench.rounds import Line, print_report

BENCHMARKS: dict[str, Callable[[], Line | list[Line]]] = {
    "appends": storage.appends,
    "reads": storage.reads,
    "recovery": storage.recovery,
    "step": consensus.step,
    "idle": consensus.idle,
    "produce": broker.produce,
    "fetch": broker.fetch,
    "record-size": broker.record_size,
    "serve": server.serve,
    "node": node.node,
    "idle-node": server.idle_node,
}


def main(names: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that folders and processes go, whatever ends this
    unknown = set(names) - BENCHMARKS.keys()
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    lines: list[Line] = []
    for name in names or BENCHMARKS:
        print(f"{name} …", file=sys.stderr)
        outcome = BENCHMARKS[name]()
        lines += outcome if isinstance(outcome, list) else [outcome]
    print_report(lines)
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
