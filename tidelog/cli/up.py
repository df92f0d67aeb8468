"""`tidelog up`: an embedded cluster on this machine, each node its own process; Ctrl-C stops it cleanly."""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

from tidelog.cli import CommandError
from tidelog.cli.server import add_set

PR_SET_PDEATHSIG = 1  # prctl(2)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("up", help="start an embedded cluster on this machine")
    parser.add_argument("--nodes", type=int, default=1, help="how many nodes (default: 1)")
    parser.add_argument("--dir", default="tidelog-data", help="folder for the nodes' data (default: ./tidelog-data)")
    parser.add_argument("--port", type=int, default=9092, help="node i listens on PORT + i; 0 takes free ones")
    parser.add_argument("--console-port", type=int, default=8090, help="port of the console, which is still to come")
    add_set(parser)


def _end_with_parent() -> None:
    """In the node's process: should `up` be killed, the node gets SIGTERM from the kernel."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run(options: argparse.Namespace) -> int:
    if options.nodes != 1:
        raise CommandError("only --nodes 1 works yet: replication between processes is still to come")
    command = [sys.executable, "-m", "tidelog.cli", "server"]
    command += ["--set", f"data.dir={os.path.join(options.dir, 'node-1')}", "--set", f"port={options.port}"]
    command += ["--set", "node.id=1"]
    for text in options.set:
        command += ["--set", text]
    if options.verbose:
        command.append("--verbose")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - there are no threads here
    ) as node:

        def stop(_number: int, _frame: FrameType | None) -> None:
            node.send_signal(signal.SIGTERM)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        assert node.stdout is not None
        for line in node.stdout:
            if line.startswith("ready"):
                bootstrap = line.split("bootstrap=")[1].strip()
                print(f"ready nodes=1 bootstrap={bootstrap} dir={os.path.abspath(options.dir)}", flush=True)
        return node.wait()
