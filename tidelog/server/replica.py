"""One log stream on this node: its log, its consensus group, and what the server has made of the committed entries.

    start_offset <= high_watermark <= log.next_offset

A consumer sees nothing at or above the high watermark: the offset behind the last committed record. It never falls
while the process lives; after a restart it begins at the log start and rises when the group has a leader again.

Committed entries are applied in order, once each: a log-start entry moves the log start, one about a remote segment
goes into `remote`, a record batch of an idempotent producer into `producers`. The state is saved from time to time with
the index it belongs to (`StreamLog.save_application`), so a restart reads only the headers of the batches behind it.

The stream begins at `start_offset`, perhaps in the object store; the log on this disk begins at `log.start_offset`,
which every replica moves for itself (`trim_local`), past nothing that is not finished in the store. A stream that shows
another cluster's (`remote.mirrored`) has no records on disk: it ends where the store does.
"""

import struct
from collections.abc import Callable, Iterator, Sequence

from tidelog import faults
from tidelog.cluster import TopicConfig
from tidelog.groups.producers import Numbers, Producers
from tidelog.raft import (
    Answer,
    Buffer,
    Change,
    Committed,
    Effects,
    EntryKind,
    Group,
    Host,
    Readable,
    Reason,
    Refusal,
    Role,
)
from tidelog.server.clock import wall_ms
from tidelog.storage import StreamLog, chunk_bytes
from tidelog.tier.metadata import Event, Outcome, RemoteLog, SegmentsAdopted, decode_event, encode_event
from tidelog.wire.batch import split_batches
from tidelog.wire.records import Record, read_records

APPLICATION_ENTRIES_MAX = 200_000  # entries whose headers a restart has to read, at most; about half a second
RECORDS_BYTES = 1 << 20  # read at a time, by `records`

LOG_START = struct.Struct(">q")
_PRODUCER_AT = 43
_NEGATIVE = 0x80  # a producer id whose first byte reaches this is none
_PRODUCER = struct.Struct(">qhii")  # producer id, epoch, base sequence, record count
_BASE_OFFSET = struct.Struct(">q")
_TWO_PARTS = struct.Struct(">BI")  # version, bytes of producers; the rest is about remote segments
TWO_PARTS = 2
"""The version of an application's content that holds both; a stream that was never tiered has producers alone."""

Done = Callable[[Refusal | None], None]
"""Called once: with None when the entries are committed (or the read may be served), else with the reason why not."""

_LOST = Refusal(Reason.LEADERSHIP_LOST)


class Replica:
    def __init__(
        self,
        log: StreamLog,
        group: Group,
        host: Host,
        config: TopicConfig,
        producers: Producers,
        now: Callable[[], int],
        gathering: "Callable[[Replica], None]",
    ) -> None:
        """`gathering` is told that something was gathered, so that `propose_gathered` is called this turn."""
        self.stream = log.stream
        self.log = log
        self.group = group
        self.config = config
        self.internal = False
        """Only the node itself writes to it."""
        self.producers = producers
        self.remote = RemoteLog()
        """The stream's segments in the object store."""
        self.nothing_stored = False
        """The store was looked into, and has nothing of this stream."""
        self.high_watermark = log.start_offset
        self.watchers: dict[object, Callable[[], None]] = {}
        """Called when the high watermark, the log start or the leadership has moved, or the leader became ready."""
        self.on_commit: Callable[[], None] | None = None
        """For the owner of an internal stream, which applies the records itself."""
        self.on_leadership: Callable[[], None] | None = None
        self._host = host
        self.now = now
        """The node's clock, in milliseconds. Asking it announces that the core is about to get work."""
        self._gathering = gathering
        self._gathered: list[Buffer] = []  # batches to be proposed at the end of this turn
        self._gathered_done: list[Done] = []
        self._gathered_deadline_ms = 0
        self._gathered_offset = 0  # where they go
        self._next_offset = 0  # behind them
        self._closed = False
        self._served = False
        self._ready_applied = False
        self._index_waiting: list[tuple[int, Done]] = []  # few: those who retry what is under way
        self._waiting: dict[int, list[Done]] = {}  # ticket -> whom to tell
        self._applied_index = self._state_index = 0
        self._begin_anew()

    @property
    def leads(self) -> bool:
        return self.group.role is Role.LEADER and not self._closed

    @property
    def ready(self) -> bool:
        """This node leads, and everything before its term is committed and applied: it may answer for the stream.

        The group is ready as soon as it has heard; the entries are applied when the turn's effects are taken.
        """
        if faults.ARMED and faults.hit("replica.ready"):
            return False
        return self._ready_applied and self.group.ready and not self._closed

    @property
    def follows(self) -> bool:
        """This node knows who leads the term, and has heard what is committed in it: it may serve what it has."""
        group = self.group
        return (
            not self._closed
            and group.role is Role.FOLLOWER
            and group.leader is not None
            and self.log.term_at(max(group.commit, self.log.first_index - 1)) == group.term
        )

    @property
    def start_offset(self) -> int:
        """Where the stream begins for clients."""
        return self.remote.first_offset(self.local_start)

    @property
    def local_start(self) -> int:
        """What lies before it must be read from the store."""
        return self.remote.end_offset if self.remote.mirrored else self.log.start_offset

    @property
    def end_offset(self) -> int:
        """Behind the last record, whether it is committed or not."""
        return self.remote.end_offset if self.remote.mirrored else self.log.next_offset

    @property
    def awaits_store(self) -> bool:
        """It is made again from the store, and what is there is not taken up yet: it knows none of its producers."""
        log = self.log
        return (
            self.config.remote
            and self.remote.is_blank
            and log.next_offset == log.start_offset > 0
            and not self.nothing_stored
        )

    def term_of_offset(self, offset: int) -> int:
        """The leader epoch of a record, in either tier; -1 when it is one that the group has not reached.

        So it is with records that a cluster before this one has written. Clients take an epoch for news of a leader.
        """
        if offset < self.local_start or self.remote.mirrored:
            epoch = self.remote.epoch_at(min(offset, self.remote.copied_until - 1))
            if epoch is not None:
                return epoch if epoch <= self.group.term else -1
        return self.log.term_of_offset(offset)

    def end_of_term(self, term: int) -> tuple[int, int]:
        """(largest leader epoch <= `term`, the offset where it ends), in either tier, or (-1, -1)."""
        found = (-1, -1) if self.remote.mirrored else self.log.end_of_term(term)
        stored = self.remote.end_of_epoch(term) if found[0] < term else None
        return found if stored is None or stored[0] <= found[0] else stored

    # Requests

    def append(
        self, batches: Sequence[Buffer], records: int, numbers: Numbers | None, deadline_ms: int, done: Done
    ) -> int:
        """Append checked batches of so many records; gives the offset of the first, if they are ever committed.

        What comes in one turn of the loop is proposed together when the turn ends (`propose_gathered`): one proposal,
        one run for the disk, one answer. `numbers` are those of an idempotent producer, who sends one batch at a time.
        """
        self.prepare(deadline_ms)
        if not self._gathered:
            self._gathered_deadline_ms = deadline_ms
            self._gathered_offset = self._next_offset = self.log.next_offset
            self._gathering(self)
        self._gathered.extend(batches)
        self._gathered_done.append(done)
        offset = self._next_offset
        self._next_offset += records
        if numbers is not None:
            self.producers.appended(numbers, offset, self.log.last_index + len(self._gathered), wall_ms())
        return offset

    def prepare(self, deadline_ms: int) -> None:
        """What was gathered with another deadline is proposed now: if it is refused, that is known before the next."""
        if deadline_ms != self._gathered_deadline_ms:
            self.propose_gathered()

    def propose_gathered(self) -> None:
        if not self._gathered:
            return
        batches, self._gathered = self._gathered, []
        waiting, self._gathered_done = self._gathered_done, []
        ticket: int | Refusal = _LOST
        if self.log.next_offset == self._gathered_offset:  # else another leader has appended meanwhile
            deadline_ms = self._gathered_deadline_ms
            ticket = self._host.propose(self.stream, EntryKind.DATA, batches, deadline_ms, self.now())
        if isinstance(ticket, Refusal):
            self._restore_pending()
            for done in waiting:
                done(ticket)
        else:
            self._waiting[ticket] = waiting

    def _restore_pending(self) -> None:
        """Nothing that was gathered came into the log: forget it, and what the log has must not be forgotten."""
        self.producers.forget_pending()
        if self.leads:
            for index, numbers, offset in self._numbers(self._applied_index + 1, self.log.last_index):
                self.producers.appended(numbers, offset, index, wall_ms())

    def _propose(self, kind: EntryKind, data: Sequence[Buffer], deadline_ms: int, done: Done) -> None:
        self.propose_gathered()
        ticket = self._host.propose(self.stream, kind, data, deadline_ms, self.now())
        if isinstance(ticket, Refusal):
            done(ticket)
        else:
            self._waiting[ticket] = [done]

    def records(self, offset: int) -> Iterator[Record]:
        """The committed records from `offset` on, for streams that the node itself reads: they are short."""
        while (offset := max(offset, self.log.start_offset)) < self.high_watermark:
            data = chunk_bytes(self.log.read(offset, self.group.commit, RECORDS_BYTES))
            for position, size in split_batches(data):
                for record in read_records(data[position : position + size]):
                    if record.offset >= offset:
                        offset = record.offset + 1
                        yield record

    def when_committed(self, index: int, done: Done) -> None:
        """`done` is called when the entry at `index` is committed, or can no longer be by this leader."""
        if index <= self._applied_index:
            done(None)
        else:
            self._index_waiting.append((index, done))

    def read_when_current(self, deadline_ms: int, done: Done) -> None:
        """`done` is called when the high watermark holds everything that was acknowledged before this call."""
        now_ms = self.now()
        index = self._host.lease_index(self.stream, now_ms)
        if index is not None:
            self.when_committed(index, done)  # it may be applied only when this turn ends
            return
        ticket = self._host.read(self.stream, deadline_ms, now_ms)
        if isinstance(ticket, Refusal):
            done(ticket)
        else:
            self._waiting[ticket] = [done]

    def announce(self) -> None:
        """Have the other replicas told at once what is committed."""
        self._host.announce(self.stream, self.now())

    def change_members(self, changes: Sequence[Change], deadline_ms: int, done: Done) -> None:
        """`done` is called when the change is committed, with all its steps."""
        self.propose_gathered()
        ticket = self._host.change_membership(self.stream, changes, deadline_ms, self.now())
        if isinstance(ticket, Refusal):
            done(ticket)
        else:
            self._waiting[ticket] = [done]

    def move_start(self, offset: int, deadline_ms: int, done: Done) -> None:
        """Delete everything before `offset`, on all replicas."""
        self._propose(EntryKind.LOG_START, (LOG_START.pack(offset),), deadline_ms, done)

    def record_remote(self, event: Event, deadline_ms: int, done: Done) -> None:
        """Have something that happened to a remote segment known to all replicas. When it is, it is applied here."""
        self._propose(EntryKind.REMOTE, (encode_event(event),), deadline_ms, done)

    def trim_local(self, offset: int) -> None:
        """Let go of what is before `offset` on this disk: it is in the store, or before the log start."""
        self.save()  # what is known only from entries that go now must not be forgotten
        self.log.trim(offset, self.group.commit)

    # Effects

    def take(self, effects: Effects) -> None:
        if effects.commit is not None:
            self._committed(effects.commit)
        for answer in effects.answers:
            self._answered(answer)
        if effects.leadership is not None and effects.leadership.role is not Role.LEADER:
            self.producers.forget_pending()
            self._tell_index_waiting(_LOST)
        self._ready_applied = self.group.ready
        serves = self._ready_applied or self.follows
        if effects.leadership is not None or self._served != serves:
            self._served = serves
            if self.on_leadership is not None:
                self.on_leadership()
            self._tell_watchers()

    def close(self, effects: Effects) -> None:
        """The node lets go of the stream; `effects` refuse all that is unanswered."""
        self._closed = True
        self._gathered.clear()
        waiting, self._gathered_done = self._gathered_done, []
        for done in waiting:
            done(_LOST)
        self._tell_index_waiting(_LOST)
        self.tell(effects)
        self._tell_watchers()

    def tell(self, effects: Effects) -> None:
        """Answer those who wait, and do no more: the node has let go of the stream."""
        for answer in effects.answers:
            self._answered(answer)

    def save(self) -> None:
        """Make durable what was made of the log. After a crash it may be ahead of the log: all of it is committed."""
        if faults.ARMED and faults.hit("replica.save"):
            return
        if self.log.application[0] < self._state_index:
            content = self.producers.encode(wall_ms())
            if not self.remote.is_blank:
                content = _TWO_PARTS.pack(TWO_PARTS, len(content)) + content + self.remote.encode()
            self.log.save_application(self._state_index, content)

    def _committed(self, index: int) -> None:
        log = self.log
        if self._applied_index < log.first_index - 1:
            self._begin_anew()
        if index > self._applied_index:
            first, self._applied_index = self._applied_index + 1, index
            self._apply(first, index)
            self._tell_index_waiting(None)
            if index - log.application[0] > APPLICATION_ENTRIES_MAX:
                self.save()
        high_watermark = self.remote.end_offset if self.remote.mirrored else log.offset_after(index)
        if log.learned_start > log.start_offset:
            log.trim(min(log.learned_start, high_watermark), index)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            if self.on_commit is not None:
                self.on_commit()
            self._tell_watchers()

    def _begin_anew(self) -> None:
        """At a start, or when the log was taken over: go on from what was made of the entries before, and saved.

        What is saved may be ahead of the log. Entries that move the log start are applied from the log's beginning:
        moving it again changes nothing.
        """
        self._state_index, saved = self.log.application
        remote = b""
        if saved[:1] == bytes((TWO_PARTS,)):
            _, size = _TWO_PARTS.unpack_from(saved)
            saved, remote = saved[_TWO_PARTS.size : _TWO_PARTS.size + size], saved[_TWO_PARTS.size + size :]
        self.producers.restore(saved)
        self.remote.restore(remote)
        self._applied_index = self.log.first_index - 1

    def _apply(self, first: int, last: int) -> None:
        if faults.ARMED:
            faults.hit("replica.apply")
        log = self.log
        known, self._state_index = self._state_index, max(self._state_index, last)
        for index, numbers, offset in self._numbers(max(first, known + 1), last):
            self.producers.committed(numbers, offset, index, wall_ms())
        own = log.own_entries(max(first, known + 1), last, EntryKind.REMOTE)
        own += log.own_entries(first, last, EntryKind.LOG_START)
        moves: list[int] = []
        for entry in sorted(own, key=lambda entry: entry.index):  # whether a segment may go depends on the log start
            if entry.kind is EntryKind.REMOTE:
                event = decode_event(entry.data)
                if self.remote.apply(event) is Outcome.APPLIED and isinstance(event, SegmentsAdopted):
                    self.producers.adopt(event.producers)
            else:
                (offset,) = LOG_START.unpack(entry.data)
                self.remote.move_start(offset)
                moves.append(offset)
        for offset in moves:
            self.save()  # what is known only from entries that go now must not be forgotten
            log.trim(offset, last)
            self.high_watermark = max(self.high_watermark, log.start_offset)
            self._tell_watchers()

    def _numbers(self, first: int, last: int) -> Iterator[tuple[int, Numbers, int]]:
        """(index, numbers, base offset) of idempotent producers' batches among the entries first..last."""
        for index, header in self.log.batch_headers(first, last):
            if header[_PRODUCER_AT] < _NEGATIVE:
                numbers = Numbers.of(*_PRODUCER.unpack_from(header, _PRODUCER_AT))
                yield index, numbers, _BASE_OFFSET.unpack_from(header)[0]

    def _answered(self, answer: Answer) -> None:
        refusal = None if isinstance(answer, Committed | Readable) else answer.refusal
        for done in self._waiting.pop(answer.ticket):
            done(refusal)

    def _tell_index_waiting(self, refusal: Refusal | None) -> None:
        """Those whose entry is committed; or all of them, when there is a reason that theirs never will be."""
        if self._index_waiting:
            waiting, self._index_waiting = self._index_waiting, []
            for index, done in waiting:
                if refusal is not None or index <= self._applied_index:
                    done(refusal)
                else:
                    self._index_waiting.append((index, done))

    def _tell_watchers(self) -> None:
        if self.watchers:
            for wake in list(self.watchers.values()):
                wake()
