"""Three replicas in one process, each with its own disk: records are written, the leader is killed, nothing is lost.

The consensus core, the storage engine and its threads are the real ones; only the network between the three is a
function call.
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable

from tidelog.raft import Committed, Configuration, EntryKind, Envelope, HardState, Host, RaftSettings, Refusal, Role
from tidelog.storage import RealDisk, StorageSettings, StorageThreads, Store, StoredVote, chunk_bytes
from tidelog.wire.batch import read_header, split_batches
from tidelog.wire.records import Record, build_batch

STREAM = 1
NODES = (1, 2, 3)
BATCHES = 2_000
RECORDS_PER_BATCH = 16
IN_FLIGHT_MAX = 64
DEADLINE_MS = 10_000
WAIT_S_MAX = 60.0  # for anything in the story; it takes a second or two
RAFT = RaftSettings(heartbeat_ms=50, election_timeout_ms=300)
STORAGE = StorageSettings(segment_bytes=8 << 20, rows_bytes=1 << 20)

Send = Callable[[Envelope], None]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def _until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + WAIT_S_MAX
    while not condition():
        if time.monotonic() > give_up:
            raise SystemExit(f"gave up after {WAIT_S_MAX:.0f} s: {what}")
        await asyncio.sleep(0.005)


class Node:
    """One replica: a store with its threads, and the consensus core between it and the other nodes."""

    def __init__(self, number: int, directory: str, send: Send) -> None:
        self.number = number
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._turn_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._answers: dict[int, asyncio.Future[int]] = {}
        self.committed_index = 0
        self.failure: BaseException | None = None
        self._store = Store(RealDisk(), directory, STORAGE, random.Random())
        self._store.on_report = self._from_thread
        configuration = Configuration(voters=NODES)
        self.log = self._store.streams.get(STREAM) or self._store.create_stream(STREAM, configuration.encode())
        vote = self._store.vote(STREAM)
        self._host = Host(number, time.time_ns(), RAFT, random.Random(), _now_ms())
        configurations = [(index, Configuration.decode(content)) for index, content in self.log.configurations()]
        self.group = self._host.add(STREAM, self.log, HardState(vote.term, vote.vote), configurations, _now_ms())
        self._threads = StorageThreads(self._store, self._fail)
        self._plan_turn()

    @property
    def leads(self) -> bool:
        return self.group.role is Role.LEADER

    def receive(self, envelope: Envelope) -> None:
        self._host.receive(envelope, _now_ms())
        self._plan_turn()

    async def append(self, batch: bytearray) -> int:
        """Returns the last index once the batch is committed."""
        ticket = self._host.propose(STREAM, EntryKind.DATA, [batch], _now_ms() + DEADLINE_MS, _now_ms())
        if isinstance(ticket, Refusal):
            raise ConnectionError(f"node {self.number}: {ticket.reason.value}")
        self._plan_turn()
        self._answers[ticket] = self._loop.create_future()
        return await self._answers[ticket]

    def kill(self) -> None:
        """End without a word: nothing is answered, nothing more is sent."""
        self._send = lambda _envelope: None
        if self._timer is not None:
            self._timer.cancel()
        self._threads.stop()
        self._store.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"node {self.number} is gone"))

    def _from_thread(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the demo is over
            self._loop.call_soon_threadsafe(self._plan_turn)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._from_thread()

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Take in what the disk has done, let the core decide, send and write what it says."""
        self._turn_planned = False
        if self.failure is not None:
            raise SystemExit(f"node {self.number} stops: {self.failure}")
        delivered = self._store.deliver()
        if delivered.logs:
            self._host.written(STREAM, _now_ms())
        for _, vote in delivered.votes:
            self._host.hard_state_written(STREAM, HardState(vote.term, vote.vote), _now_ms())
        work = self._host.poll(_now_ms())
        for envelope in work.envelopes:
            self._send(envelope)
        for _, effects in work.groups:
            if effects.hard_state is not None:
                self._store.save_vote(STREAM, StoredVote(effects.hard_state.term, effects.hard_state.vote))
            if effects.commit is not None:
                self.committed_index = effects.commit
            for answer in effects.answers:
                waiting = self._answers.pop(answer.ticket)
                if waiting.done():
                    continue
                if isinstance(answer, Committed):
                    waiting.set_result(answer.index)
                else:
                    waiting.set_exception(ConnectionError(f"node {self.number}: {answer}"))
        self._plan_timer()

    def _plan_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_ms = self._host.next_deadline_ms()
        if deadline_ms is not None:
            self._timer = self._loop.call_later(max(0, deadline_ms - _now_ms()) / 1000, self._plan_turn)

    def content(self) -> bytes:
        """All committed record batches."""
        parts: list[bytes] = []
        offset, end = self.log.start_offset, self.log.offset_after(self.committed_index)
        while offset < end:
            data = chunk_bytes(self.log.read(offset, self.committed_index, 1 << 20))
            parts.append(data)
            offset = max(read_header(data, position).next_offset for position, _ in split_batches(data))
        return b"".join(parts)


class Cluster:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.nodes: dict[int, Node] = {}
        for number in NODES:
            self.start(number)

    def start(self, number: int) -> None:
        self.nodes[number] = Node(number, os.path.join(self._directory, f"node-{number}"), self._carry)

    def kill(self, number: int) -> None:
        self.nodes.pop(number).kill()

    def _carry(self, envelope: Envelope) -> None:
        target = self.nodes.get(envelope.destination)
        if target is not None:
            target.receive(envelope)

    async def leader(self) -> Node:
        await _until(lambda: any(node.leads for node in self.nodes.values()), "no node leads")
        return next(node for node in self.nodes.values() if node.leads)

    async def write(self, count: int, acknowledged: list[bytes]) -> None:
        """Write batches at the leader, a window of them at a time; those whose answer is lost are not counted."""
        leader = await self.leader()
        window = asyncio.Semaphore(IN_FLIGHT_MAX)

        async def write_one(number: int) -> None:
            value = f"record {number}".encode() * 8
            batch = build_batch([Record(value, timestamp=_now_ms()) for _ in range(RECORDS_PER_BATCH)])
            content = bytes(batch[16:])  # without what the log stamps into it
            async with window:
                with contextlib.suppress(ConnectionError):
                    await leader.append(batch)
                    acknowledged.append(content)

        await asyncio.gather(*(write_one(number) for number in range(count)))

    async def settle(self) -> None:
        """Wait until every node has committed all that the leader holds."""
        leader = await self.leader()
        await _until(
            lambda: all(node.committed_index >= leader.log.last_index for node in self.nodes.values()),
            "the nodes do not catch up",
        )

    def stop(self) -> None:
        for number in list(self.nodes):
            self.kill(number)


async def _tell(directory: str, stay: bool) -> None:
    print(f"three nodes, data in {directory}")
    cluster = Cluster(directory)
    acknowledged: list[bytes] = []
    try:
        leader = await cluster.leader()
        print(f"node {leader.number} leads in term {leader.group.term}")
        begun = time.monotonic()
        await cluster.write(BATCHES, acknowledged)
        seconds = time.monotonic() - begun
        print(
            f"wrote {len(acknowledged)} batches of {RECORDS_PER_BATCH} records, "
            f"each synced on a majority before it was acknowledged: {len(acknowledged) / seconds:.0f} batches/s"
        )
        writing = asyncio.create_task(cluster.write(BATCHES, acknowledged))
        await _until(lambda: len(acknowledged) >= BATCHES * 5 // 4, "writes are not acknowledged")
        killed, begun = leader.number, time.monotonic()
        cluster.kill(killed)
        leader = await cluster.leader()
        elected_ms = (time.monotonic() - begun) * 1000
        print(f"killed node {killed} while it was written to; node {leader.number} leads {elected_ms:.0f} ms later")
        await writing
        await cluster.write(BATCHES, acknowledged)
        cluster.start(killed)
        await cluster.settle()
        print(f"node {killed} is back and has caught up")
        _compare(cluster, acknowledged)
        print("ready" if stay else "done", flush=True)
        while stay:
            await asyncio.sleep(1)
            await cluster.write(100, acknowledged)
            leader = await cluster.leader()
            print(f"node {leader.number} leads, {leader.log.next_offset} records, Ctrl-C stops", flush=True)
    finally:
        cluster.stop()


def _compare(cluster: Cluster, acknowledged: list[bytes]) -> None:
    contents = {node.content() for node in cluster.nodes.values()}
    if len(contents) != 1:
        raise SystemExit("the replicas differ")
    (content,) = contents
    missing = sum(batch not in content for batch in acknowledged)
    if missing:
        raise SystemExit(f"{missing} acknowledged batches are missing")
    digest = hashlib.sha256(content).hexdigest()[:16]
    print(f"all {len(acknowledged)} acknowledged batches are there; the three logs are equal, {digest}…")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("demo", help="three nodes on this machine: write, kill the leader, lose nothing")
    parser.add_argument("--dir", help="keep the nodes' data here (default: a temporary folder, removed at the end)")
    parser.add_argument("--exit", action="store_true", help="end when the story is told")


def run(options: argparse.Namespace) -> int:
    folder = options.dir or tempfile.mkdtemp(prefix="tidelog-demo-")
    try:
        asyncio.run(_tell(folder, stay=not options.exit))
    except KeyboardInterrupt:
        pass
    finally:
        if options.dir is None:
            shutil.rmtree(folder)
    return 0
