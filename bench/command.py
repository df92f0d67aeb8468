"""What `tidelog bench` and its subcommands do; their options are in tidelog/cli/bench.py."""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.arena import QUICK, Effort
from bench.cluster_nodes import ClusterFailed
from bench.figures import Figure, Results, figure_lines, series_lines
from bench.growth import GROWTHS, growth
from bench.guard import guard
from bench.processes import ProgramFailed
from bench.report import report
from bench.side_by_side import ROWS, chosen, side_by_side
from bench.vdl import VDL_ROWS, vdl
from tidelog.cli import CommandError


def run(options: argparse.Namespace) -> int:
    try:
        return _run(options)
    except (ClusterFailed, ProgramFailed) as failure:
        raise CommandError(f"{failure}; is the machine very busy, or its disk full?") from None


def _run(options: argparse.Namespace) -> int:
    if options.what == "report":
        return report([Path(name) for name in options.results], Path(options.docs))
    if options.what == "guard":
        _end_in_order()
        return guard(write=options.write)
    known = {None: ROWS, "growth": tuple(GROWTHS), "vdl": tuple(VDL_ROWS)}[options.what]
    if options.only == "list":
        print("\n".join(known))
        return 0
    try:
        names = chosen(options.only, known)
    except ValueError as error:
        raise CommandError(str(error)) from None
    effort = QUICK if options.quick else Effort()
    if options.rounds:
        effort = replace(effort, rounds=options.rounds)
    _end_in_order()
    if options.what == "growth":
        results = growth(names, effort, options.records, show=lambda series: _say(series_lines(series)))
    elif options.what == "vdl":
        results = vdl(names, effort, _show)
    else:
        results = side_by_side(names, replace(effort, kafka=not options.no_kafka), _show)
    return _finish(results, options)


def _end_in_order() -> None:
    """So that folders and processes go, whatever ends this."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def _show(figures: Sequence[Figure]) -> None:
    _say(figure_lines(figures))


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _finish(results: Results, options: argparse.Namespace) -> int:
    if options.json:
        Path(options.json).write_text(results.to_json())
    if options.what is None:
        print()
        _show(results.figures)
    for remark in results.remarks:
        print(f"note: {remark}")
    if not results.figures and not results.series:
        raise CommandError("nothing was measured; what went wrong stands above")
    missed = any(figure.met is False for figure in results.figures)
    return 1 if missed and getattr(options, "strict", False) else 0
