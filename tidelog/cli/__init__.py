"""The `tidelog` command."""

import argparse
import sys
from collections.abc import Sequence

from tidelog import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidelog", description="A strongly consistent distributed log.")
    parser.add_argument("--version", action="version", version=f"tidelog {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="three nodes on this machine: write, kill the leader, lose nothing")
    demo.add_argument("--dir", help="keep the nodes' data here (default: a temporary folder, removed at the end)")
    demo.add_argument("--exit", action="store_true", help="end when the story is told")
    options = parser.parse_args(arguments)
    from tidelog.cli.demo import run_demo

    try:
        return run_demo(options.dir, stay=not options.exit)
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
