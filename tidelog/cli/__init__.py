"""The `tidelog` command: every subcommand is a module with `add_parser` and `run`.

Exit status is 0 only when it worked. An error is one line on stderr that says what to do.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from tidelog import __version__

COMMANDS = (
    "up",
    "server",
    "stream",
    "produce",
    "consume",
    "cluster",
    "backup",
    "restore",
    "verify",
    "tier",
    "demo",
    "pikiwi",
    "regionwal",
    "table",
    "bench",
)


class CommandError(Exception):
    """What went wrong, in one line for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidelog", description="A strongly consistent distributed log.")
    parser.add_argument("--version", action="version", version=f"tidelog {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    arguments = sys.argv[1:] if arguments is None else arguments
    # The command that is asked for is enough to understand what follows it; only for help are all of them needed.
    names = [name for name in arguments[:1] if name in COMMANDS] or COMMANDS
    modules = {name: importlib.import_module(f"tidelog.cli.{name}") for name in names}
    for module in modules.values():
        module.add_parser(subparsers)
    options = parser.parse_args(arguments)
    try:
        return modules[options.command].run(options)
    except CommandError as error:
        print(f"tidelog: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        return 0
