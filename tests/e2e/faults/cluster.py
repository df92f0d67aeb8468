"""A cluster of real `tidelog server` processes on loopback, and everything that can be done to one of its nodes.

Every node reaches every other one through a link of its own (`links`): its `cluster.nodes` names the links' ports. A
node's standard error goes to `node-N.log` beside its data, over all its lives. Nothing waits without a bound, nobody
sleeps to wait for a start (a node says `ready`), and `close` leaves neither a process nor a mount behind.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.ports import free_port

from .asking import AskError, ask_admin, ask_metadata
from .links import Network

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_BYTES = 6_000
SMALL_DISK_BYTES = 96 << 20
BALLAST = "ballast"

SETTINGS = {
    "storage.segment.bytes": str(1 << 20),
    "storage.tail.cache.bytes": str(8 << 20),
    "group.initial.rebalance.delay.ms": "0",
    "group.partitions": "2",
    "topic.auto.create": "false",
}


class ClusterFailed(Exception):
    """A node did not start, stop or answer as it promises."""


class NodeProcess:
    """One node: its settings, its folder, and its process while it has one."""

    def __init__(self, number: int, folder: Path, settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self.number = number
        self.port = int(settings["port"])
        self.data = folder / f"node-{number}"
        self.log = folder / f"node-{number}.log"
        self._settings = settings
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self.stopped = False  # by SIGSTOP
        self.has_small_disk = False
        self.statuses: list[int] = []  # how its lives ended

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """By itself: nobody has taken note yet."""
        return self._process is not None and self._process.poll() is not None

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Whether it ends by itself in that time; `has_ended` is true then."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.has_ended

    def start(self) -> None:
        assert not self.running
        command = [sys.executable, "-m", "tidelog.cli", "server", "--verbose"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        self._ready = ready = threading.Event()
        with open(self.log, "ab") as log:
            log.write(b"--- node %d starts\n" % self.number)
            log.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,  # a Ctrl-C for the tests must not stop the nodes under them
            )
        self._process = process
        self.stopped = False
        threading.Thread(target=_watch, args=(process, ready), daemon=True).start()

    def wait_ready(self, deadline_s: float) -> None:
        while not self._ready.wait(0.05):
            if not self.running:
                raise ClusterFailed(f"node {self.number} ended before it was ready\n{self.log_tail()}")
            if time.monotonic() > deadline_s:
                raise ClusterFailed(f"node {self.number} is not ready in time\n{self.log_tail()}")

    @property
    def ready(self) -> bool:
        return self._ready.is_set() and self.running

    def kill(self) -> None:
        """kill -9, and gone."""
        if self._process is not None:
            self._process.kill()
            self.statuses.append(self._process.wait(STOP_TIMEOUT_S))
            self._process = None

    def terminate(self) -> None:
        """SIGTERM: it ends in order, with status 0."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterFailed(
                f"node {self.number} is there {STOP_TIMEOUT_S} s after SIGTERM\n{self.log_tail()}"
            ) from None
        self._process = None
        self.statuses.append(status)
        if status != 0:
            raise ClusterFailed(f"node {self.number} ended with {status} after SIGTERM\n{self.log_tail()}")

    def wait_ended(self, timeout_s: float) -> int:
        """It ends by itself (a crash point, a failed disk); gives the status."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ClusterFailed(f"node {self.number} still runs after {timeout_s} s\n{self.log_tail()}") from None
        self._process = None
        self.statuses.append(status)
        return status

    def stop(self) -> None:
        """SIGSTOP: it is there and does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.stopped = False

    def wipe(self) -> None:
        """Its disk is replaced by an empty one."""
        assert not self.running
        for path in self.data.iterdir():  # the folder itself may be a mount
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def fill_disk(self) -> None:
        """Not a byte is left. Without a small disk of its own the node is told to find it so."""
        if not self.has_small_disk:
            ask_admin(self.port, "fault", point="disk.write", action="error:ENOSPC")
            return
        with open(self.data / BALLAST, "wb", buffering=0) as ballast:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while ballast.write(bytes(size)):
                        pass

    def free_disk(self) -> None:
        if not self.has_small_disk:
            ask_admin(self.port, "fault", point="disk.write")
            return
        (self.data / BALLAST).unlink()

    def tracebacks(self) -> list[str]:
        """Exceptions that nobody expected, from all its lives."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        found = re.finditer(r"^(?:.*\n)?Traceback \(most recent call last\):\n(?:[ \t].*\n)*.*\n", text, re.MULTILINE)
        return [match.group() for match in found]

    def log_tail(self, size: int = LOG_TAIL_BYTES) -> str:
        return self.log.read_bytes()[-size:].decode(errors="replace") if self.log.exists() else ""

    def __repr__(self) -> str:
        return f"node {self.number}"


def _watch(process: "subprocess.Popen[bytes]", ready: threading.Event) -> None:
    """Read on after the ready line, so that a full pipe cannot hold the node up."""
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            if line.startswith(b"ready "):
                ready.set()


class Cluster:
    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        config_nodes: int = 3,
        racks: Sequence[str] = ("a", "b", "c"),
        settings: Mapping[str, str] | None = None,
        faults: str | None = None,
        small_disks: Sequence[int] = (),
    ) -> None:
        """`faults` is the nodes' TIDELOG_FAULTS; nodes in `small_disks` have one that can be filled."""
        self._folder = folder
        self._mounts: list[Path] = []
        self.ended: list[str] = []  # nodes that ended by themselves
        self.network = Network()
        numbers = range(1, nodes + 1)
        config = [number for number in numbers if number <= config_nodes]
        peer_ports = {number: free_port() for number in numbers}
        environment = {} if faults is None else {"TIDELOG_FAULTS": faults}
        self.nodes: dict[int, NodeProcess] = {}
        try:
            for number in numbers:
                addresses = [
                    f"{other}@127.0.0.1:"
                    + str(peer_ports[number] if other == number else self.network.add(number, other, peer_ports[other]))
                    for other in config
                ]
                chosen = {
                    "node.id": str(number),
                    "data.dir": str(folder / f"node-{number}"),
                    "port": str(free_port()),
                    "peer.port": str(peer_ports[number]),
                    "roles": "config,data" if number in config else "data",
                    "rack": racks[(number - 1) % len(racks)],
                    "cluster.nodes": ",".join(addresses),
                    **SETTINGS,
                    **(settings or {}),
                }
                self.nodes[number] = node = NodeProcess(number, folder, chosen, environment)
                node.data.mkdir(parents=True)
                if number in small_disks:
                    self._mount(node.data)
                    node.has_small_disk = True
        except BaseException:
            self.close()
            raise

    def _mount(self, path: Path) -> None:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(path)], check=True, timeout=10
        )
        self._mounts.append(path)

    # Life

    def start(self) -> None:
        """All together: a cluster is founded when its config servers see each other."""
        for node in self.nodes.values():
            node.start()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for node in self.nodes.values():
            node.wait_ready(deadline_s)

    def heal(self, *, reset: bool = False) -> None:
        """Every link works, every node runs. Ready or not: see `wait_ready`."""
        self.network.heal(reset=reset)
        for node in self.nodes.values():
            if node.running and node.stopped:
                node.go_on()
            elif not node.running:
                self._note_ended(node)
                node.start()

    def _note_ended(self, node: NodeProcess) -> None:
        if node.has_ended:
            self.ended.append(f"{node} ended by itself with status {node.wait_ended(0)}\n{node.log_tail(2_000)}")

    def terminate(self) -> None:
        """SIGTERM for all at once; each must end in order. Whoever had ended before is in `ended`."""
        for node in self.nodes.values():
            self._note_ended(node)
        running = [node for node in self.nodes.values() if node.running]
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(NodeProcess.terminate, running))

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        for node in self.nodes.values():
            node.wait_ready(deadline_s)

    def close(self) -> None:
        for node in self.nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.kill()
        self.network.close()
        for path in self._mounts:
            subprocess.run(["umount", "-l", str(path)], check=False, timeout=10)
        for node in self.nodes.values():
            shutil.rmtree(node.data, ignore_errors=True)

    def logs(self) -> str:
        return "\n".join(f"=== {node}, ended with {node.statuses}\n{node.log_tail()}" for node in self.nodes.values())

    # Questions

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def answering(self) -> list[NodeProcess]:
        return [node for node in self.nodes.values() if node.ready and not node.stopped]

    def admin(self, method: str, *, node: int | None = None, **content: Any) -> dict[str, Any]:
        asked = self.nodes[node] if node is not None else self.answering()[0]
        return ask_admin(asked.port, method, **content)

    def ask_admin(self, method: str, **content: Any) -> dict[str, Any]:
        """As `admin`, of any node that answers; for methods that have a `node` of their own."""
        return ask_admin(self.answering()[0].port, method, **content)

    def leader(self, topic: str, partition: int = 0, timeout_s: float = 20.0) -> int:
        """The node that leads, by the word of the node that knows the newest term."""

        def find() -> int | None:
            known: list[tuple[int, int]] = []
            for node in self.answering():
                with contextlib.suppress(AskError):
                    known += [
                        (found.leader_epoch, found.leader_id)
                        for found in ask_metadata(node.port, topic).topics[0].partitions
                        if found.partition_index == partition and found.leader_id >= 0
                    ]
            leader = max(known)[1] if known else None
            return leader if leader is not None and self.nodes[leader] in self.answering() else None

        return self.wait_for(find, f"a leader of {topic}/{partition}", timeout_s)

    def controller(self, timeout_s: float = 20.0) -> int:
        """The config servers' leader, by the word of most nodes."""

        def find() -> int | None:
            votes: list[int] = []
            for node in self.answering():
                with contextlib.suppress(AskError):
                    votes.append(ask_metadata(node.port).controller_id)
            named = [vote for vote in votes if vote in self.nodes and votes.count(vote) * 2 > len(votes)]
            return named[0] if named else None

        return self.wait_for(find, "a leader of the config servers", timeout_s)

    def wait_for(self, question: Callable[[], Any], what: str, timeout_s: float) -> Any:
        deadline_s = time.monotonic() + timeout_s
        while (answer := question()) is None or answer is False:
            if time.monotonic() > deadline_s:
                raise ClusterFailed(f"{what}: not within {timeout_s} s\n{self.logs()}")
            time.sleep(0.05)
        return answer


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None
