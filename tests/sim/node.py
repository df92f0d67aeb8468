"""One simulated node: the real `Host` over the real `Store`, on a simulated disk and clock, and the server's replicas.

A node has one life after another; between them it is down, and only its disk remains. What happens on its loop (a
message, a request, a timer, a report of its disk) is followed by a turn, at once or after more has happened: propose
what was gathered, poll the host, check the invariants, do what the host wants. Storage's threads are events of their
own (`threads`).
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tidelog.cluster import Applied, Command
from tidelog.raft import FOUNDED, AppendRequest, Change, Configuration, Entry, Envelope, Group, HardState, Host
from tidelog.server.cluster_log import ClusterLog
from tidelog.server.replica import Done, Replica
from tidelog.storage import Store, StoredVote, StreamLog, SyncFailedError, WriterFailedError

from .clock import Clock
from .disk import SimDisk, SimulatedCrash
from .invariants import Invariants
from .mix import Mix
from .network import Network
from .observed_log import ObservedLog
from .scheduler import MILLISECOND, Event, Scheduler
from .server_parts import make_cluster_log, make_replica
from .threads import SimThreads

DIRECTORY = "data"
REPORT_DELAY = MILLISECOND // 3  # mean time until the loop hears what storage's threads have done
BUSY = 0.2  # how often more happens on the loop before it turns
BUSY_TIME = MILLISECOND // 2

Told = tuple[int, Configuration]
"""The configuration that a replica begins with, and its index."""


class SimNode:
    def __init__(
        self,
        number: int,
        mix: Mix,
        scheduler: Scheduler,
        network: Network,
        invariants: Invariants,
        rng: Random,
        died: Callable[["SimNode", str], None],
    ) -> None:
        """`died` is told when the node dies by itself, and why."""
        self.number = number
        self.disk = SimDisk(rng, direct=mix.direct)
        self.clock = Clock(rng, scheduler.now, mix.drift_max)
        self.life = 0
        self.groups: dict[int, Told] = {}  # that it should carry, with the configuration that each began with
        self.founds: set[int] = set()  # groups that it leads first, if it knows nothing of them yet
        self.replicas: dict[int, Replica] = {}
        self.cluster_log: ClusterLog | None = None
        self._mix = mix
        self._scheduler = scheduler
        self._network = network
        self._invariants = invariants
        self._rng = rng
        self._died = died
        self._host: Host | None = None
        self._store: Store | None = None
        self._gathering: list[Replica] = []
        self._turn_planned = False
        self._wake_up: Event | None = None
        self._reporting = self._deciding = False
        invariants.add_node(number, self.disk, DIRECTORY)

    def __str__(self) -> str:
        return f"n{self.number}"

    @property
    def alive(self) -> bool:
        return self._host is not None

    @property
    def has_turned(self) -> bool:
        """Whether it has done what followed from all that happened."""
        return not self._turn_planned

    @property
    def host(self) -> Host:
        assert self._host is not None
        return self._host

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def now_ms(self) -> int:
        return self.clock.read(self._scheduler.now) // MILLISECOND

    def group(self, group: int) -> Group | None:
        """The group as this node sees it; None when the node is down or does not carry it."""
        if self._store is None or self._host is None or group not in self._store.streams:
            return None
        return self._host.group(group)

    def log(self, group: int) -> StreamLog:
        return self.store.streams[group]

    def high_watermark(self, group: int) -> int:
        return self.replicas[group].high_watermark

    # ---- life and death

    def start(self) -> None:
        """Recover from the disk and take part again."""
        assert not self.alive
        self.life += 1
        self.disk.restart()
        self._reporting = self._turn_planned = self._deciding = False
        self._loop_event(self._boot)

    def _boot(self) -> None:
        self._store = store = Store(self.disk, DIRECTORY, self._mix.storage, self._rng)
        self._host = Host(self.number, self.life, self._mix.raft, self._rng, self.now_ms)
        store.on_report = self._report_later
        for group in list(store.streams):
            if group not in self.groups:
                store.delete_stream(group)  # it left the group, and died before that was done
        for group, told in self.groups.items():
            if group in store.streams:
                self._carry(store.streams[group], told)
            else:
                self._carry(store.create_stream(group, told[1].encode()), told, new=True)
        self._threads = SimThreads(store, self.disk, self._rng, self._later, lane=self._mix.direct and self._mix.lane)
        store.writer.on_waiting = self._want_turn

    def _carry(self, log: StreamLog, told: Told, *, new: bool = False) -> None:
        self._invariants.recovered(self.number, log)
        shadow = self._invariants.shadow(self.number, log.stream)
        configurations = [(index, Configuration.decode(content)) for index, content in log.configurations()]
        if told[0] > log.last_index:
            configurations.insert(0, told)
            shadow.told()
        vote = self.store.vote(log.stream)
        hard_state = HardState(vote.term, vote.vote)
        founds = vote.term == 0 and new and log.stream in self.founds
        if vote.term == 0 and self._mix.is_founded(log.stream) and not founds:
            hard_state = FOUNDED
        group = self.host.add(log.stream, ObservedLog(log, shadow), hard_state, configurations, self.now_ms)
        if founds:
            self.host.found(log.stream, self.now_ms)
        replica = make_replica(log, group, self.host, lambda: self.now_ms, self._gathering.append)
        self.replicas[log.stream] = replica
        if log.stream == self._mix.cluster_group:
            self.cluster_log = make_cluster_log(self._command_applied)
            self.cluster_log.attach(replica)

    def _command_applied(self, command: Command, applied: Applied) -> None:
        assert self.cluster_log is not None
        self._invariants.command_applied(self.number, self.cluster_log.offset, self.cluster_log.machine)

    def join(self, group: int, told: Told) -> None:
        """Carry one more group, with an empty log that begins under the configuration it is told."""
        if group in self.groups:
            return
        self.groups[group] = told
        if self.alive and group not in self.store.streams:
            self._loop_event(lambda: self._carry(self.store.create_stream(group, told[1].encode()), told))

    def leave(self, group: int) -> None:
        """Carry a group no longer, and delete its log."""
        del self.groups[group]
        self.founds.discard(group)
        self._loop_event(lambda: self._delete(group))

    def _delete(self, group: int) -> None:
        effects = self.host.remove(group, self.now_ms)
        self.store.delete_stream(group)
        self.replicas.pop(group).close(effects)
        if group == self._mix.cluster_group:
            self.cluster_log = None
        self._invariants.left(self.number, group)

    def cut_power(self) -> None:
        self.disk.crash()
        self._stop()

    def kill(self) -> None:
        self.disk.kill()
        self._stop()

    def lose_disk(self) -> list[int]:
        """The node dies, and when it starts again it is with an empty disk; returns what it carried."""
        if self.alive:
            self.kill()
        self.disk = SimDisk(self._rng, direct=self._mix.direct)
        self.disk.kill()
        self._invariants.lost(self.number)
        self.founds.clear()  # what it said as their leader is forgotten, so it must not lead that term again
        self._invariants.add_node(self.number, self.disk, DIRECTORY)
        lost, self.groups = list(self.groups), {}
        return lost

    def _stop(self) -> None:
        self._host = self._store = self.cluster_log = None
        self.replicas = {}  # whoever waits for an answer will never get one
        self._gathering = []
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None

    def _die(self, why: str) -> None:
        self._stop()
        self._died(self, why)

    # ---- events

    def _event(self, action: Callable[[], object]) -> None:
        """Let something happen to the node."""
        try:
            action()
        except SimulatedCrash:
            self._die("dies in the middle of a write")
        except (WriterFailedError, SyncFailedError, OSError) as error:
            self._disk_failed(error)

    def _loop_event(self, action: Callable[[], object]) -> None:
        """Let something happen on the node's loop, which then turns."""

        def act_and_turn() -> None:
            action()
            if self._rng.random() < BUSY:
                self._turn_later()
            else:
                self._turn()

        self._event(act_and_turn)

    def _disk_failed(self, error: Exception) -> None:
        if self.disk.sync_has_failed:
            self._rng.choice((self.disk.crash, self.disk.kill))()
            self._die("stops after a failed sync")
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
            self.disk.kill()
            self._die("has no room on its disk to start")
        else:
            raise error

    def _later(self, delay: int, action: Callable[[], object], what: str) -> Event:
        """Schedule an event of this life."""
        life = self.life

        def happen() -> None:
            if self.alive and self.life == life:
                self._event(action)

        return self._scheduler.after(delay, happen, self, what)

    def receive(self, envelope: Envelope) -> None:
        if self.alive:
            self._loop_event(lambda: self.host.receive(envelope, self.now_ms))

    # ---- requests; each is answered once, unless the node dies first

    def request(self, group: int, ask: Callable[[Replica], object]) -> None:
        """Something is asked of a replica."""
        self._loop_event(lambda: ask(self.replicas[group]))

    def change_members(self, group: int, changes: Sequence[Change], deadline_ms: int, done: Done) -> None:
        self.request(group, lambda replica: replica.change_members(changes, deadline_ms, done))

    def campaign(self, group: int) -> None:
        self._loop_event(lambda: self.host.campaign(group, self.now_ms))

    def transfer(self, group: int, target: int) -> None:
        self._loop_event(lambda: self.host.transfer_leadership(group, target, self.now_ms))

    # ---- the loop

    def _turn_later(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._later(self._rng.randint(0, BUSY_TIME), self._turn, "turns")

    def _want_turn(self) -> None:
        if not self._deciding:
            self._turn_later()

    def _turn(self) -> None:
        self._turn_planned = False
        self._deciding = True
        self._decide()
        self._threads.start_writes()
        self._deciding = False

    def _decide(self) -> None:
        host, store = self.host, self.store
        while self._gathering:
            self._gathering.pop(0).propose_gathered()
        work = host.poll(self.now_ms)
        for group, log in store.streams.items():
            self._invariants.after(self.number, host.group(group), log)  # before anybody hears of it
        for envelope in work.envelopes:
            self._invariants.sent(envelope, store)
            self._network.send(self.number, envelope.destination, _as_bytes(envelope))
        for group, effects in work.groups:
            if effects.hard_state is not None:
                store.save_vote(group, StoredVote(effects.hard_state.term, effects.hard_state.vote))
            self.replicas[group].take(effects)
            self._invariants.took(self.number, self.replicas[group])
            if host.group(group).asleep:
                self.log(group).settle()
        if self._gathering:
            self._turn_later()
        self._set_wake_up()

    def _set_wake_up(self) -> None:
        deadline_ms = self.host.next_deadline_ms()
        if deadline_ms is None:
            return
        local_delay = max(0, deadline_ms * MILLISECOND - self.clock.read(self._scheduler.now))
        delay = self.clock.world_delay(local_delay)
        planned = self._wake_up
        if planned is not None and planned.action is not None:
            if planned.time <= self._scheduler.now + delay:
                return  # it comes early enough, and will set the next one
            planned.cancel()
        self._wake_up = self._later(delay, self._woken, "wakes up")

    def _woken(self) -> None:
        self._wake_up = None
        self._turn()

    # ---- what storage's threads have done

    def _report_later(self) -> None:
        if not self._reporting:
            self._reporting = True
            self._later(self._threads.delay(REPORT_DELAY), self._report, "hears from its disk")

    def _report(self) -> None:
        self._reporting = False
        delivered = self.store.deliver()
        for stream, vote in delivered.votes:
            self.host.hard_state_written(stream, HardState(vote.term, vote.vote), self.now_ms)
        for log in delivered.logs:
            self._invariants.wrote(self.number, log)
            self.host.written(log.stream, self.now_ms)
        if delivered.votes or delivered.logs:
            self._turn()
        else:
            self._threads.start_writes()  # of what waited for the threads


def _as_bytes(envelope: Envelope) -> Envelope:
    """What travels is a copy: the sender's memory is its own."""
    return Envelope(
        envelope.source,
        envelope.destination,
        envelope.incarnation,
        [_copied(message) if isinstance(message, AppendRequest) else message for message in envelope.messages],
    )


def _copied(message: AppendRequest) -> AppendRequest:
    entries = [Entry(entry.index, entry.term, entry.kind, bytes(entry.data)) for entry in message.entries]
    return replace(message, entries=entries)
