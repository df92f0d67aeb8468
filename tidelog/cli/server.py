"""`tidelog server`: one node, until it is told to stop."""

import argparse
import dataclasses
import logging
import os
import sys

from tidelog.cli import CommandError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "server",
        help="run one node",
        description="Settings come from the file, the environment (TIDELOG_…) and --set, in rising order.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_Settings("%(prog)s"),  # argparse fills in texts that have this, and only those
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings")
    add_set(parser)


class _Settings(str):
    """The list of settings, made only when somebody asks for help."""

    def __mod__(self, _values: object) -> str:
        from tidelog.server.settings import Settings, dotted

        lines = [
            f"  {dotted(item.name)} = {_text(item.default)}\n      {item.metadata['doc']}"
            for item in dataclasses.fields(Settings)
        ]
        return "settings:\n" + "\n".join(lines)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if value == "" else str(value)


def add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="log connections and more")


def parse_sets(texts: list[str]) -> dict[str, str]:
    sets: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--set {text}: write NAME=VALUE")
        sets[name.strip()] = value.strip()
    return sets


def run(options: argparse.Namespace) -> int:
    from tidelog.server.process import run as run_server
    from tidelog.server.settings import SettingsError, load_settings

    try:
        settings = load_settings(options.config, os.environ, parse_sets(options.set))
    except SettingsError as error:
        raise CommandError(str(error)) from None
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    return run_server(
        settings, lambda host, port: print(f"ready node={settings.node_id} bootstrap={host}:{port}", flush=True)
    )
