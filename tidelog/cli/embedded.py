"""A cluster on this machine, each node a process of its own: what `tidelog up` and `tidelog demo` start.

All listening sockets are bound here, before anything starts, and handed to the nodes as open files, so that no port can
be lost between choosing and using it. What stays here of a port is a bound socket that does not listen: it keeps the
port for the node's next life, and yet whoever connects while the node is dead is refused at once.

A node that dies is started again, after a pause that grows from `RESTART_S_MIN` to `RESTART_S_MAX` and begins anew once
a node has run for `STEADY_S`.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidelog.cli import CommandError
from tidelog.cli.children import end_with_parent

HOST = "127.0.0.1"
LISTEN_FDS = "TIDELOG_LISTEN_FDS"  # "<for clients>,<for peers>": open files that a node listens on instead of binding
RESTART_S_MIN, RESTART_S_MAX = 0.25, 10.0
STEADY_S = 30.0
ASK_S_MAX = 3.0
READY_S_MAX = 120.0
STOP_S_MAX = 60.0
OUTPUT_BYTES_MAX = 64 << 10  # of a node's output that is held until its line is whole


class Port:
    """A port of ours, listened on by whoever is handed `socket()`, and by nobody when that one has gone."""

    def __init__(self, number: int, host: str = HOST) -> None:
        self._host = host
        self._reserved = socket.socket()
        # Fails when somebody listens there; what still waits for its time-out after a restart does not matter.
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._reserved.bind((host, number))
        except OSError as error:
            self._reserved.close()
            raise CommandError(
                f"cannot listen on {host}:{number} ({error.strerror}): stop what runs there, or give another --port"
            ) from None
        except OverflowError:
            self._reserved.close()
            raise CommandError(f"{number} is not a port: give a --port below 65536") from None
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # from now on, beside `socket()`
        self.number: int = self._reserved.getsockname()[1]

    def socket(self) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((self._host, self.number))
        return made

    def close(self) -> None:
        self._reserved.close()


def config_servers(nodes: int) -> int:
    """How many of so many nodes are config servers at first: an odd number, and not more than help."""
    return nodes if nodes < 3 else 3 if nodes < 5 else 5


@dataclass(slots=True)
class _Member:
    """One node: its ports, and the process that runs it now."""

    number: int
    client: Port
    peer: Port
    sets: Sequence[str]
    process: "subprocess.Popen[bytes] | None" = None
    output: bytearray = field(default_factory=bytearray)
    ready: bool = False
    began: float = 0.0
    pause_s: float = RESTART_S_MIN
    again_at: float | None = None  # when it is started again


class EmbeddedCluster:
    """`start`, then `run` as long as it shall live, then `stop`. Everything happens in the caller's thread."""

    def __init__(
        self,
        folder: str,
        nodes: int,
        port: int = 0,
        *,
        host: str = HOST,
        racks: Sequence[str] = (),
        sets: Sequence[str] = (),
        verbose: bool = False,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self._verbose = verbose
        self._say = say
        self._selector = selectors.DefaultSelector()
        self._starting = True  # a node that ends now is a failure of the whole
        self._stopping = False
        self._orderly = True  # of those that have ended since they were told to
        self.restarts = 0
        ports: list[Port] = []
        try:
            for i in range(nodes):
                ports.append(Port(port + i if port else 0, host))  # noqa: PERF401 - those that were made are closed below
            ports.extend(Port(0) for _ in range(nodes))
        except CommandError:
            for made in ports:
                made.close()
            raise
        clients, peers = ports[:nodes], ports[nodes:]
        addresses = ",".join(f"{i}@{HOST}:{peer.number}" for i, peer in enumerate(peers[: config_servers(nodes)], 1))
        self._members = [
            _Member(
                i,
                client,
                peer,
                [
                    f"node.id={i}",
                    f"data.dir={os.path.join(os.path.abspath(folder), f'node-{i}')}",
                    f"host={host}",
                    f"port={client.number}",
                    f"peer.host={HOST}",
                    f"peer.port={peer.number}",
                    f"cluster.nodes={addresses if nodes > 1 else ''}",
                    *([f"rack={racks[(i - 1) % len(racks)]}"] if racks else []),
                    *sets,
                ],
            )
            for i, (client, peer) in enumerate(zip(clients, peers, strict=True), 1)
        ]
        reachable = HOST if host in ("", "0.0.0.0") else host
        self.bootstrap = ",".join(f"{reachable}:{client.number}" for client in clients)

    # --- life ---

    def start(self, timeout_s: float = READY_S_MAX) -> None:
        """All nodes, until all of them serve. On failure, none is left."""
        try:
            for member in self._members:
                self._launch(member)
            give_up = time.monotonic() + timeout_s
            while not all(member.ready for member in self._members):
                if time.monotonic() > give_up:
                    late = [str(member.number) for member in self._members if not member.ready]
                    raise CommandError(f"not ready after {timeout_s:.0f} s: node {', '.join(late)}")
                self._turn(0.5)
                if self._stopping:
                    raise KeyboardInterrupt
                for member in self._members:
                    if member.process is None:
                        raise CommandError(f"node {member.number} did not start; what it said stands above")
            self._starting = False
        except BaseException:
            self.stop()
            raise

    def run(self, seconds: float | None = None) -> None:
        """Look after the nodes: for so long, or until `end` is called from a signal's handler."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._stopping and (until is None or time.monotonic() < until):
            self._turn(0.5 if until is None else min(0.5, max(until - time.monotonic(), 0)))

    def tend(self) -> None:
        """One look, without waiting: for those who have other things to do."""
        self._turn(0)

    def end(self) -> None:
        """From a signal's handler: `start` and `run` return soon, since nodes that end wake the selector."""
        if not self._stopping:  # a second signal would end a node that is about to end in order
            self._stopping = True
            for member in self._members:
                if member.process is not None and member.process.poll() is None:
                    member.process.terminate()

    def stop(self) -> bool:
        """All nodes at once; whether all of them ended in order."""
        self.end()
        give_up = time.monotonic() + STOP_S_MAX
        for member in self._members:
            process = member.process
            if process is None:
                continue
            try:
                status = process.wait(max(give_up - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            self._note_end(member, status)
            if process.stdout is not None:
                process.stdout.close()
        for member in self._members:
            member.process = None
            member.client.close()
            member.peer.close()
        self._selector.close()
        return self._orderly

    def kill(self, number: int) -> None:
        """As `kill -9` does. The node is started again, as any that dies."""
        process = self._members[number - 1].process
        if process is not None:
            process.kill()

    def ready(self, number: int) -> bool:
        return self._members[number - 1].ready

    # --- parts ---

    def _launch(self, member: _Member) -> None:
        command = [sys.executable, "-m", "tidelog.cli", "server"]
        for text in member.sets:
            command += ["--set", text]
        if self._verbose:
            command.append("--verbose")
        with member.client.socket() as client, member.peer.socket() as peer:
            member.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={**os.environ, LISTEN_FDS: f"{client.fileno()},{peer.fileno()}"},
                pass_fds=(client.fileno(), peer.fileno()),
                start_new_session=True,  # Ctrl-C is for us; we tell the nodes
                preexec_fn=end_with_parent,  # noqa: PLW1509 - a system call, whatever other threads hold
            )
        assert member.process.stdout is not None
        os.set_blocking(member.process.stdout.fileno(), False)
        self._selector.register(member.process.stdout, selectors.EVENT_READ, member)
        member.output.clear()
        member.ready = False
        member.began = time.monotonic()
        member.again_at = None

    def _turn(self, wait_s: float) -> None:
        """One look at everything; sleeps until something happens, `wait_s` at most."""
        now = time.monotonic()
        waits = [wait_s, *(member.again_at - now for member in self._members if member.again_at is not None)]
        if not self._selector.get_map():
            time.sleep(max(min(waits), 0))
        else:
            for key, _ in self._selector.select(max(min(waits), 0)):
                self._hear(key.data)
        for member in self._members:
            if member.again_at is not None and time.monotonic() >= member.again_at and not self._stopping:
                self.restarts += 1
                self._launch(member)

    def _hear(self, member: _Member) -> None:
        assert member.process is not None
        assert member.process.stdout is not None
        data = os.read(member.process.stdout.fileno(), OUTPUT_BYTES_MAX)
        if not data:
            self._bury(member)
            return
        member.output += data
        *lines, rest = bytes(member.output).split(b"\n")
        member.output[:] = rest[-OUTPUT_BYTES_MAX:]
        member.ready = member.ready or any(line.startswith(b"ready") for line in lines)

    def _note_end(self, member: _Member, status: int) -> None:
        """Of a node that was told to stop; one that was just being started may not have been able to hear it."""
        self._orderly &= status == 0 or (status == -signal.SIGTERM and not member.ready)

    def _removed(self, member: _Member) -> bool:
        """Whether the others have forgotten it (`tidelog cluster remove-node`): then it has nothing more to do."""
        from tidelog.cli.admin import Admin

        admin = Admin(self.bootstrap)
        try:
            return admin.cluster(ASK_S_MAX).node(member.number) is None
        except CommandError:
            return False
        finally:
            admin.close()

    def _bury(self, member: _Member) -> None:
        """Its output has ended, so it has, or will very soon."""
        process = member.process
        assert process is not None
        assert process.stdout is not None
        self._selector.unregister(process.stdout)
        process.stdout.close()
        try:
            status = process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        member.process = None
        if self._stopping:
            self._note_end(member, status)
        member.ready = False
        if self._stopping or self._starting:
            return
        if status > 0 and self._removed(member):
            self._say(f"node {member.number} was removed from the cluster; it is not started again")
            return
        if time.monotonic() - member.began >= STEADY_S:
            member.pause_s = RESTART_S_MIN
        member.again_at = time.monotonic() + member.pause_s
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self._say(f"node {member.number} {how}; it is started again in {member.pause_s:g} s")
        member.pause_s = min(member.pause_s * 2, RESTART_S_MAX)
