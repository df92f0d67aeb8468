"""`tidelog up`: an embedded cluster on this machine, each node its own process; Ctrl-C stops it cleanly."""

import argparse
import os
import re
import signal
from types import FrameType

from tidelog.cli import CommandError
from tidelog.cli.client import number_from
from tidelog.cli.server import add_set, parse_sets

NODES_DEFAULT = 3
NODES_MAX = 64


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("up", help="start an embedded cluster on this machine")
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=number_from(1),
        help=f"how many nodes (default: as many as DIR has, else {NODES_DEFAULT})",
    )
    parser.add_argument("--dir", default="tidelog-data", help="folder for the nodes' data (default: ./tidelog-data)")
    parser.add_argument(
        "--port",
        type=number_from(0),
        default=9092,
        help="the first node listens here, the next ones on the ports behind it (default: 9092); 0 takes free ones",
    )
    parser.add_argument(
        "--console-port", type=number_from(0), default=8090, help="port of the console, which is still to come"
    )
    parser.add_argument(
        "--rack", metavar="A,B,C", default="", help="data centres, dealt out to the nodes in turn (default: none)"
    )
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from tidelog.cli.embedded import HOST, EmbeddedCluster

    there = _nodes_in(options.dir)
    nodes = options.nodes or there or NODES_DEFAULT
    if nodes < there:
        raise CommandError(
            f"{options.dir} holds a cluster of {there} nodes, which {nodes} cannot run: leave out --nodes, "
            f"or give another --dir"
        )
    if nodes > NODES_MAX:
        raise CommandError(f"{nodes} nodes are too many for one machine: at most {NODES_MAX}")
    host = parse_sets(options.set).get("host") or os.environ.get("TIDELOG_HOST") or HOST
    racks = [rack.strip() for rack in options.rack.split(",") if rack.strip()]
    cluster = EmbeddedCluster(
        options.dir, nodes, options.port, host=host, racks=racks, sets=options.set, verbose=options.verbose
    )

    def end(_number: int, _frame: FrameType | None) -> None:
        cluster.end()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        cluster.start()
    except KeyboardInterrupt:  # told to stop before it was ready: that is what it did
        return 0
    print(f"ready nodes={nodes} bootstrap={cluster.bootstrap} dir={os.path.abspath(options.dir)}", flush=True)
    cluster.run()
    return 0 if cluster.stop() else 1


def _nodes_in(folder: str) -> int:
    """The largest number of a node that has data there."""
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    return max((int(found[1]) for name in names if (found := re.fullmatch(r"node-(\d+)", name))), default=0)
