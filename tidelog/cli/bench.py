"""`tidelog bench`: side by side with Apache Kafka, how cost grows, VDL's table, and the guard against regressions.

The benchmarks are part of the repository, not of the installed package: they start nodes, a compiler, a JVM. This
module only knows their options, so that `--help` costs nothing.
"""

import argparse
import importlib
from types import ModuleType

from tidelog.cli import CommandError
from tidelog.cli.client import number_from

RECORDS_DEFAULT = 1_000_000


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "bench",
        help="side by side with Apache Kafka, on this machine",
        description="Without a subcommand: the same client work against Tidelog and a real Apache Kafka, in turn, "
        "three nodes each, as ratios with their spread. Exit status 0 says that it ran, not that it was fast.",
    )
    add_common(parser)
    parser.add_argument("--no-kafka", action="store_true", help="Tidelog against its floor only")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    subcommands = parser.add_subparsers(dest="what", metavar="SUBCOMMAND")
    growth = subcommands.add_parser(
        "growth", help="how cost grows with record size, streams, connections, consumers, log length, nodes"
    )
    add_common(growth, argparse.SUPPRESS)
    growth.add_argument(
        "--records",
        metavar="N",
        type=number_from(10_000),
        default=RECORDS_DEFAULT,
        help=f"of the longest log (default: {RECORDS_DEFAULT:,})",
    )
    add_common(subcommands.add_parser("vdl", help="VDL's published table, row by row"), argparse.SUPPRESS)
    guard = subcommands.add_parser("guard", help="fail on a loss of more than 25 %% against bench/baseline.json")
    guard.add_argument("--write", action="store_true", help="make what is measured now the baseline")
    report = subcommands.add_parser("report", help="tables and charts of docs/performance.md, from results in JSON")
    report.add_argument("results", nargs="+", metavar="FILE", help="what --json wrote")
    report.add_argument("--docs", metavar="FOLDER", default="docs", help="(default: ./docs)")


def add_common(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """A subcommand leaves its defaults to the command, so that an option may stand before it or behind."""
    parser.add_argument(
        "--only", metavar="A,B", default=default or "", help="these, or those that begin so; `list` shows all"
    )
    parser.add_argument(
        "--rounds", metavar="N", type=number_from(1), default=default, help="that count (default: 5, with --quick 2)"
    )
    parser.add_argument(
        "--quick", action="store_true", default=default or False, help="short rounds: to see that it works"
    )
    parser.add_argument("--json", metavar="FILE", default=default, help="write what was measured there, too")


def run(options: argparse.Namespace) -> int:
    return _benchmarks().run(options)


def _benchmarks() -> ModuleType:
    try:
        return importlib.import_module("bench.command")
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("bench"):
            raise CommandError(f"the benchmarks need {missing.name}: run them where `make setup` was run") from None
        raise CommandError(
            "the benchmarks are in Tidelog's repository, not in its package: run `make setup` in a clone of it, "
            "then `.venv/bin/tidelog bench` there"
        ) from None
