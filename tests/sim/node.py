"""One simulated node: the real `Host` over the real `Store`, on a simulated disk and clock.

A node has one life after another; between them it is down, and only its disk remains. What happens on its loop (a
message, a request, a timer, a report of its disk) ends with a turn: poll the host, check the invariants, do what the
host wants. Storage's threads are events of their own (`threads`).
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tidelog.raft import (
    Answer,
    AppendRequest,
    Buffer,
    Change,
    Configuration,
    Entry,
    EntryKind,
    Envelope,
    Group,
    HardState,
    Host,
    Refusal,
)
from tidelog.storage import Store, StoredVote, StreamLog, SyncFailedError, WriterFailedError

from .clock import Clock
from .disk import SimDisk, SimulatedCrash
from .history import LOG_START, Violation
from .invariants import Invariants
from .mix import Mix
from .network import Network
from .observed_log import ObservedLog
from .scheduler import MILLISECOND, Event, Scheduler
from .threads import SimThreads

DIRECTORY = "data"
REPORT_DELAY = MILLISECOND // 3  # mean time until the loop hears what storage's threads have done


Answered = Callable[[Answer | Refusal], None]


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
        self.groups: dict[int, Configuration] = {}  # that it should carry, with the configuration each began with
        self._mix = mix
        self._scheduler = scheduler
        self._network = network
        self._invariants = invariants
        self._rng = rng
        self._died = died
        self._host: Host | None = None
        self._store: Store | None = None
        self._requests: dict[tuple[int, int], Answered] = {}  # by group and ticket
        self._applied: dict[int, int] = {}
        self._wake_up: Event | None = None
        self._reporting = False
        invariants.add_node(number, self.disk, DIRECTORY)

    def __str__(self) -> str:
        return f"n{self.number}"

    @property
    def alive(self) -> bool:
        return self._host is not None

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
        """A log start is committed when it is set; after a restart it may be all that is known."""
        log = self.log(group)
        return max(log.start_offset, log.offset_after(self.host.group(group).commit))

    # ---- life and death

    def start(self) -> None:
        """Recover from the disk and take part again."""
        assert not self.alive
        self.life += 1
        self.disk.restart()
        self._reporting = False
        self._loop_event(self._boot)

    def _boot(self) -> None:
        self._store = store = Store(self.disk, DIRECTORY, self._mix.storage, self._rng)
        self._host = Host(self.number, self.life, self._mix.raft, self._rng, self.now_ms)
        store.on_report = self._report_later
        for group in list(store.streams):
            if group not in self.groups:
                store.delete_stream(group)  # it left the group, and died before that was done
        for group, configuration in self.groups.items():
            self._carry(store.streams.get(group) or store.create_stream(group, configuration.encode()))
        self._threads = SimThreads(store, self.disk, self._rng, self._later)

    def _carry(self, log: StreamLog) -> None:
        self._invariants.recovered(self.number, log)
        observed = ObservedLog(log, self._invariants.shadow(self.number, log.stream))
        configurations = [(index, Configuration.decode(content)) for index, content in log.configurations()]
        vote = self.store.vote(log.stream)
        self._applied[log.stream] = log.first_index - 1
        self.host.add(log.stream, observed, HardState(vote.term, vote.vote), configurations, self.now_ms)

    def join(self, group: int, configuration: Configuration) -> None:
        """Carry one more group, with an empty log that begins under `configuration`."""
        self.groups[group] = configuration
        if self.alive and group not in self.store.streams:
            self._loop_event(lambda: self._carry(self.store.create_stream(group, configuration.encode())))

    def leave(self, group: int) -> None:
        """Carry a group no longer, and delete its log."""
        del self.groups[group]
        self._loop_event(lambda: self._delete(group))

    def _delete(self, group: int) -> None:
        for answer in self.host.remove(group, self.now_ms).answers:
            self._answered(group, answer)
        self.store.delete_stream(group)
        self._invariants.left(self.number, group)

    def cut_power(self) -> None:
        self.disk.crash()
        self._stop()

    def kill(self) -> None:
        self.disk.kill()
        self._stop()

    def _stop(self) -> None:
        self._host = self._store = None
        self._requests.clear()  # whoever asked will never know
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

    def propose(
        self, group: int, kind: EntryKind, data: Sequence[Buffer], deadline_ms: int, answered: Answered
    ) -> None:
        self._request(group, lambda: self.host.propose(group, kind, data, deadline_ms, self.now_ms), answered)

    def move_log_start(self, group: int, offset: int, deadline_ms: int, answered: Answered) -> None:
        self.propose(group, EntryKind.LOG_START, [LOG_START.pack(offset)], deadline_ms, answered)

    def read(self, group: int, deadline_ms: int, answered: Answered) -> None:
        self._request(group, lambda: self.host.read(group, deadline_ms, self.now_ms), answered)

    def change_members(self, group: int, changes: Sequence[Change], deadline_ms: int, answered: Answered) -> None:
        self._request(group, lambda: self.host.change_membership(group, changes, deadline_ms, self.now_ms), answered)

    def campaign(self, group: int) -> None:
        self._loop_event(lambda: self.host.campaign(group, self.now_ms))

    def transfer(self, group: int, target: int) -> None:
        self._loop_event(lambda: self.host.transfer_leadership(group, target, self.now_ms))

    def _request(self, group: int, ask: Callable[[], int | Refusal], answered: Answered) -> None:
        def request() -> None:
            ticket = ask()
            if isinstance(ticket, Refusal):
                answered(ticket)
            else:
                self._requests[group, ticket] = answered

        self._loop_event(request)

    def _answered(self, group: int, answer: Answer) -> None:
        answered = self._requests.pop((group, answer.ticket), None)
        if answered is None:
            raise Violation("each request has one answer", f"{self}, group {group}: {answer} to no request")
        answered(answer)

    # ---- the loop

    def _turn(self) -> None:
        host, store = self.host, self.store
        work = host.poll(self.now_ms)
        for group, log in store.streams.items():
            self._invariants.after(self.number, host.group(group), log)  # before anybody hears of it
        for envelope in work.envelopes:
            self._invariants.sent(envelope, store)
            self._network.send(self.number, envelope.destination, _as_bytes(envelope))
        for group, effects in work.groups:
            if effects.hard_state is not None:
                store.save_vote(group, StoredVote(effects.hard_state.term, effects.hard_state.vote))
            if effects.commit is not None:
                self._apply(group, effects.commit)
            for answer in effects.answers:
                self._answered(group, answer)
            if host.group(group).asleep:
                self.log(group).settle()
        self._set_wake_up()

    def _apply(self, group: int, commit: int) -> None:
        """Entries of the log's own: a committed log start takes effect."""
        log = self.log(group)
        for entry in log.own_entries(max(self._applied[group] + 1, log.first_index), commit):
            if entry.kind is EntryKind.LOG_START:
                log.trim(LOG_START.unpack(entry.data)[0], commit)
        self._applied[group] = commit

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
