"""`python -m bench.traced FILE MODULE ARGUMENTS…`: a node that notes when it takes the steps of a request.

A step is a call of one of a few methods, or its end; noting one takes a fraction of a microsecond. FILE, written when
the node ends, has a line a step: when, by the clock that all processes of a machine share, in nanoseconds, and which.
"""

import runpy
import sys
import time
from collections.abc import Callable
from typing import Any

from tidelog.server.connection import Connection
from tidelog.server.node import Node
from tidelog.server.peers import Link
from tidelog.storage.kernel_writes import KernelWrites

STEPS_MAX = 2_000_000

_WATCHED: tuple[tuple[type, str, str, str], ...] = (  # with what is noted before and behind a call
    (Connection, "buffer_updated", "request", ""),
    (Connection, "_flush", "", "answered"),
    (Link, "buffer_updated", "message", ""),
    (Link, "write", "sending", "sent"),
    (KernelWrites, "submit", "submitting", "submitted"),
    (KernelWrites, "take_done", "written", ""),
    (Node, "_turn", "turn", ""),
)

Steps = list[tuple[int, str]]


def _watch(steps: Steps, kind: type, method: str, before: str, behind: str) -> None:
    watched: Callable[..., Any] = getattr(kind, method)

    def call(*arguments: Any) -> Any:
        if before and len(steps) < STEPS_MAX:
            steps.append((time.perf_counter_ns(), before))
        answer = watched(*arguments)
        if behind and len(steps) < STEPS_MAX:
            steps.append((time.perf_counter_ns(), behind))
        return answer

    setattr(kind, method, call)


def read_steps(path: str) -> Steps:
    with open(path) as file:
        return [(int(when), step) for when, step in map(str.split, file)]


def main(path: str, module: str, arguments: list[str]) -> None:
    sys.argv = [module, *arguments]
    steps: Steps = []
    for watched in _WATCHED:
        _watch(steps, *watched)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        with open(path, "w") as file:
            file.writelines(f"{when} {step}\n" for when, step in steps)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
