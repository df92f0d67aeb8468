"""The engine of one node: disk, consensus and their threads, driven turn by turn on the event loop.

Whatever happens (a request, a message of another node, a report of a disk thread, a timer) is followed by one turn at
the end of the loop's iteration: take in what the disk has done, let the core decide, send and write what it says. So
everything that arrives together leaves together.

A failure of the disk, or an inconsistency found anywhere in a turn, ends the node: `failed` is called once, nothing is
acknowledged any more.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence, Set

from tidelog.cluster import CLUSTER_STREAM, TopicConfig
from tidelog.groups.producers import Producers
from tidelog.raft import FOUNDED, Configuration, Envelope, HardState, Host, Refusal
from tidelog.server.clock import now_ms
from tidelog.server.replica import Replica
from tidelog.server.settings import Settings
from tidelog.storage import (
    AppendLane,
    Disk,
    Filling,
    Folder,
    Folders,
    Manifest,
    StorageThreads,
    StoredVote,
    WriterFailedError,
)

log = logging.getLogger(__name__)

MOMENT_MS = 10  # so long after a write the next one is expected
SETTLE_AFTER_S = 2.0  # how often streams at rest are marked as such on disk


class Node:
    def __init__(self, settings: Settings, disk: Disk, failed: Callable[[BaseException], None]) -> None:
        self.number = settings.node_id
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._on_failure = failed
        self._failure: BaseException | None = None
        self._turn_planned = self._deciding = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._now_ms = now_ms()
        self._stopped = False
        rng = random.Random()
        self._store = Folders(disk, settings.folders, settings.storage, rng)
        self._store.set_on_report(self._from_thread)
        self._incarnation = time.time_ns()
        self._host = Host(settings.node_id, self._incarnation, settings.raft, rng, self._now_ms)
        self.replicas: dict[int, Replica] = {}
        self._dropped: dict[int, Replica] = {}  # since effects were last taken: they may hold answers for them
        self._gathering: list[Replica] = []
        self._after_turn: list[Callable[[], None]] = []
        self._giving_way: set[asyncio.Future[None]] = set()
        self._written_ms = 0
        self.send: Callable[[Envelope], None] = _nobody_is_there
        """Hands an envelope to the network, which may lose it."""
        self.on_led: Callable[[Replica], None] = _whatever
        """Told of a stream whose leader, or whose members as its leader knows them, may have changed."""
        self._lanes = self._store.open_lanes()
        for lane in self._lanes:
            self._loop.add_reader(lane.fileno(), self._collect, lane)
        if not self._lanes:
            log.info("node %d: appends are written by a thread; the kernel cannot do it by itself here", self.number)
        self._store.set_on_waiting(self._want_turn)
        self._threads = [StorageThreads(store, self.fail) for store in self._store.stores]
        self._settle_timer = self._loop.call_later(SETTLE_AFTER_S, self._settle)

    @property
    def failed(self) -> bool:
        """Nothing will be acknowledged any more."""
        return self._failure is not None

    def now(self) -> int:
        return now_ms()

    # Streams

    @property
    def streams_on_disk(self) -> list[int]:
        return list(self._store.streams)

    @property
    def streams_being_deleted(self) -> Set[int]:
        return self._store.deleting

    @property
    def directory_id(self) -> str:
        """Which disk this is: another one has another id."""
        return self._store.directory_id

    @property
    def folders(self) -> list[Folder]:
        """Where the node's streams lie."""
        return self._store.folders

    @property
    def cluster_id(self) -> str:
        """The cluster this disk belongs to; empty before it is known."""
        return self._store.cluster_id

    def remember_cluster(self, cluster_id: str) -> None:
        self._store.remember_cluster(cluster_id)

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def nodes_alive(self) -> frozenset[int]:
        """The other nodes that this one hears from; only the nodes it shares streams with."""
        return self._host.nodes_alive

    def begin(
        self,
        stream: int,
        voters: Sequence[int],
        config: TopicConfig,
        start_offset: int = 0,
        configuration_index: int = 0,
    ) -> Replica:
        """Take part in a stream with a new log, which begins under `voters`.

        This node need not be one of them; then `configuration_index` says since when they are.
        """
        configuration = Configuration.of(voters).encode()
        self._store.create_stream(stream, configuration, start_offset, configuration_index)
        first = voters[0] == self.number  # somebody has to be
        if first and self._hard_state(stream) is FOUNDED:
            replica = self._take_part(stream, config, HardState())
            self._host.found(stream, now_ms())
        else:
            replica = self.carry(stream, config)
            if first:
                self._host.campaign(stream, now_ms())
        return replica

    def carry(self, stream: int, config: TopicConfig) -> Replica:
        """Take part in a stream whose log is here."""
        return self._take_part(stream, config, self._hard_state(stream))

    def _hard_state(self, stream: int) -> HardState:
        """Streams are founded by the first of their voters: the cluster's own log says once who that is, and knows
        whose disk was lost since. Of that log itself nobody does, so its leaders are elected from the beginning.
        """
        vote = self._store.vote(stream)
        return FOUNDED if vote.term == 0 and stream != CLUSTER_STREAM else HardState(vote.term, vote.vote)

    def _take_part(self, stream: int, config: TopicConfig, hard_state: HardState) -> Replica:
        stream_log = self._store.streams[stream]
        configurations = [(index, Configuration.decode(content)) for index, content in stream_log.configurations()]
        group = self._host.add(stream, stream_log, hard_state, configurations, now_ms())
        producers = Producers(self._settings.producer_id_expiration_ms)
        replica = Replica(stream_log, group, self._host, config, producers, self._request, self._gather)
        self.replicas[stream] = replica
        self._plan_turn()
        return replica

    def fill(self, manifest: Manifest) -> Filling:
        """Begin, or go on with, filling a stream that is not here; all else about it happens in threads."""
        return self._store.fill_stream(manifest)

    def abandon_fillings(self, wanted: Callable[[int], bool]) -> None:
        """Remove what was begun to be filled and is not wanted any more."""
        for stream in self._store.fillings:
            if not wanted(stream):
                self._store.abandon_filling(stream)

    def adopt(self, filling: Filling, config: TopicConfig) -> Replica:
        """Take part in a stream that was filled."""
        self._store.adopt_stream(filling)
        return self.carry(filling.stream, config)

    def drop(self, stream: int) -> None:
        """Leave a stream and delete its log."""
        replica = self.replicas.pop(stream, None)
        if replica is not None:
            self._dropped[stream] = replica
            effects = self._host.remove(stream, now_ms())
            self._store.delete_stream(stream)
            replica.close(effects)
        elif stream in self._store.streams:
            self._store.delete_stream(stream)

    async def give_way(self, wait_s: float) -> None:
        """Wait until nothing is being written, but no longer than that: for work that is in less of a hurry.

        The writer's threads need the interpreter between their system calls, and get it late from a loop that is busy.
        """
        if not self._store.writing:
            return
        written: asyncio.Future[None] = self._loop.create_future()
        self._giving_way.add(written)
        try:
            async with asyncio.timeout(wait_s):
                await written
        except TimeoutError:
            pass  # it has waited long enough
        finally:
            self._giving_way.discard(written)

    @property
    def writes(self) -> bool:
        """Whether anything is being written, or was a moment ago."""
        return self._store.writing or now_ms() - self._written_ms < MOMENT_MS

    # The loop

    def receive(self, envelope: Envelope) -> None:
        self._host.receive(envelope, now_ms())
        if self._host.has_work:
            self._plan_turn()

    def unreachable(self, node: int) -> None:
        """What was sent to a node may be lost."""
        self._host.peer_unreachable(node, now_ms())
        self._plan_turn()

    def transfer_leadership(self, stream: int, target: int) -> Refusal | None:
        return self._host.transfer_leadership(stream, target, self._request())

    def _request(self) -> int:
        """The time, for somebody who is about to ask the core for something: what it decides is done this turn."""
        self._plan_turn()
        return now_ms()

    def after_turn(self, call: Callable[[], None]) -> None:
        """Have something done when the turn ends; when there is none, soon."""
        if self._deciding:
            self._after_turn.append(call)
        else:
            self._loop.call_soon(call)

    def _gather(self, replica: Replica) -> None:
        """A replica has something to propose when this turn ends."""
        self._gathering.append(replica)
        self._plan_turn()

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def _want_turn(self) -> None:
        """Something is to be written; what the turn itself wants written it begins when it ends."""
        if not self._deciding:
            self._plan_turn()

    def _turn(self) -> None:
        if self._stopped:
            return
        if self._failure is not None:
            self._stopped = True
            self._on_failure(self._failure)
            return
        self._deciding = True
        try:
            self._decide()
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._stop_in_doubt(error)
        finally:
            self._deciding = False
        if self._after_turn:
            calls, self._after_turn = self._after_turn, []
            for call in calls:
                try:
                    call()
                except Exception:  # one connection's trouble must not keep the answers of others
                    log.exception("what was to be done after a turn failed: %r", call)
        self._go_on()

    def _stop_in_doubt(self, error: Exception) -> None:
        """A core in doubt must not go on, whatever the doubt is."""
        log.error("node %d stops: its core is in doubt", self.number, exc_info=error)
        self._failure = error
        self._turn_planned = False  # this one did not come to its end
        self._plan_turn()

    def _decide(self) -> None:
        host, store, replicas, dropped = self._host, self._store, self.replicas, self._dropped
        self._take_reports()
        for lane in self._lanes:
            lane.start()  # what other nodes sent: they wait for it
        for replica in self._gathering:
            replica.propose_gathered()
        self._gathering.clear()
        self._turn_planned = False  # so far all that was asked of the core is this turn's; from here on, the next one's
        time_ms = now_ms()  # proposing asked the clock again: to the host it must not fall
        work = host.poll(time_ms)
        dropped.clear()
        for envelope in work.envelopes:
            self.send(envelope)
        for stream, effects in work.groups:
            if stream in dropped:  # while the effects of other streams were carried out
                dropped[stream].tell(effects)
                continue
            replica = replicas[stream]
            if effects.hard_state is not None:
                store.save_vote(stream, StoredVote(effects.hard_state.term, effects.hard_state.vote))
            replica.take(effects)
            if effects.leadership is not None or effects.configuration is not None:
                self.on_led(replica)
        for lane in self._lanes:
            lane.start()
        self._plan_timer(time_ms)

    def _take_reports(self) -> None:
        """Tell the core what the disk has done."""
        time_ms = now_ms()
        delivered = self._store.deliver()
        if delivered.logs:
            self._written_ms = time_ms
        for stream_log in delivered.logs:
            self._host.written(stream_log.stream, time_ms)
        for stream, vote in delivered.votes:
            self._host.hard_state_written(stream, HardState(vote.term, vote.vote), time_ms)

    def _go_on(self) -> None:
        """When nothing is being written, and answers have left: whoever gave way need not any longer."""
        if self._giving_way and not self._store.writing:
            for written in self._giving_way:
                if not written.done():
                    written.set_result(None)

    def _plan_timer(self, time_ms: int) -> None:
        deadline_ms = self._host.next_deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return  # it comes early enough, and asks again
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(max(0, deadline_ms - time_ms) / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._plan_turn()

    def _settle(self) -> None:
        for stream_log in self._store.streams.values():
            stream_log.settle()
        self._settle_timer = self._loop.call_later(SETTLE_AFTER_S, self._settle)

    # Disk, threads, failure, the end

    def _collect(self, lane: AppendLane) -> None:
        """The disk has written something. Often that decides nothing: the leader's is the first of three."""
        try:
            if not lane.collect():
                return  # a half of something
            if not self._stopped and self._failure is None:
                self._take_reports()
        except WriterFailedError as error:
            self._failure = error
            self._plan_turn()
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._stop_in_doubt(error)
        if self._host.has_work or lane.has_waiting:
            self._plan_turn()
        else:
            self._go_on()

    def _from_thread(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the node has stopped
            self._loop.call_soon_threadsafe(self._plan_turn)

    def fail(self, error: BaseException) -> None:
        """Something happened after which nothing may be acknowledged any more. From any thread."""
        self._failure = error
        self._from_thread()

    def stop(self) -> None:
        """Write what waits and let go of the directory. Nothing is answered any more."""
        self._stopped = True
        self._settle_timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for lane in self._lanes:
            self._loop.remove_reader(lane.fileno())
        if self._failure is None:
            self._store.deliver()
            for replica in self.replicas.values():
                replica.save()
            for lane in self._lanes:
                with contextlib.suppress(WriterFailedError):  # the threads say so too
                    lane.finish()
            for threads in self._threads:
                threads.stop()
        self._store.close()


def _nobody_is_there(_envelope: Envelope) -> None:
    """Until there is a network, all is lost."""


def _whatever(_replica: Replica) -> None:
    """Nobody wants to know."""
