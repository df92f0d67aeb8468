"""What must hold after every event, whatever has happened so far.

    one leader a term; one vote a term                            History.elected, voted
    logs with an equal entry are equal before it                  History.entry_appended
    leaders have all that is committed                            Shadow.elected
    a committed entry never changes, is never truncated           History.entry_committed, Shadow.truncated
    commit and high watermark never fall while a process lives    Shadow.commit_moved, Invariants.after
    what is committed is durable on a quorum                      Invariants._check_quorum
    what a node takes for durable, its disk cannot lose           Shadow.wrote
    nobody speaks of a term, vote or entry that is not durable    Invariants.sent
    the newest configuration of a log is in force                 Shadow.has_in_force
    offsets are dense; log start <= high watermark <= log end     History.entry_appended, Invariants.after
    what is acknowledged is committed; reads see it               Invariants.acknowledged, read_answered
    a replica's watermark is what is committed                    Invariants.took
    producers are known alike wherever the log is as long         Invariants.took
    the cluster's state is the same wherever the log is as long   Invariants.command_applied
    an idempotent producer's batches are there once, in order     Invariants.check_producers
    recovery brings back what was durable, and nothing foreign    Shadow.recovered

Each event touches one node, so only that node is looked at, and of it only what changed.
"""

from dataclasses import dataclass

from tidelog.cluster import Machine, decode_command, encode_command
from tidelog.raft import (
    FOUNDED,
    AppendRequest,
    AppendResponse,
    Configuration,
    Envelope,
    Group,
    Heartbeat,
    HeartbeatResponse,
    Role,
    TakeOver,
    VoteRequest,
    VoteResponse,
)
from tidelog.server.replica import Replica
from tidelog.storage import Store, StreamLog, chunk_bytes
from tidelog.wire.batch import read_header
from tidelog.wire.records import read_records

from .disk import SimDisk
from .history import History, Violation, check, is_quorum
from .server_parts import producers_state
from .shadow import Shadow


@dataclass(frozen=True, slots=True)
class ReadFloor:
    """What a read that is asked now must at least see: all that was acknowledged, and all that was read before."""

    index: int
    start_offset: int


class Invariants:
    def __init__(self) -> None:
        self._histories: dict[int, History] = {}
        self._shadows: dict[tuple[int, int], Shadow] = {}
        self._disks: dict[int, tuple[SimDisk, str]] = {}
        self._read_floors: dict[int, ReadFloor] = {}
        self._producers: dict[tuple[int, int], bytes] = {}  # (group, index) -> what is known of producers there
        self._gone: list[Shadow] = []  # of logs that were deleted or lost
        self._founded: set[int] = set()  # groups whose first leader was agreed upon
        self._states: dict[int, bytes] = {}  # offset of the cluster's log -> the state before it

    def add_node(self, node: int, disk: SimDisk, directory: str) -> None:
        """`directory` is where the node's store is on its `disk`."""
        self._disks[node] = (disk, directory)

    def history(self, group: int) -> History:
        history = self._histories.get(group)
        if history is None:
            history = self._histories[group] = History(group)
            self._read_floors[group] = ReadFloor(0, 0)
        return history

    def shadow(self, node: int, group: int) -> Shadow:
        shadow = self._shadows.get((node, group))
        if shadow is None:
            disk, directory = self._disks[node]
            shadow = Shadow(node, self.history(group), disk, f"{directory}/streams/{group}")
            self._shadows[node, group] = shadow
        return shadow

    def founded(self, group: int, founder: int, first: Configuration) -> None:
        """All voters that a group begins with have, by agreement, voted for its founder."""
        self._founded.add(group)
        for voter in first.voters:
            self.history(group).voted(voter, FOUNDED.term, founder)

    # ---- after each event

    def recovered(self, node: int, log: StreamLog) -> None:
        self.shadow(node, log.stream).recovered(log)

    def wrote(self, node: int, log: StreamLog) -> None:
        """`node` hears that more of its log is durable."""
        self.shadow(node, log.stream).wrote(log.durable_index)

    def left(self, node: int, group: int) -> None:
        """`node` has deleted its log, and what it voted with it."""
        self._gone.append(self._shadows.pop((node, group)))
        self.history(group).forgot_votes(node)

    def lost(self, node: int) -> None:
        """`node` has lost its disk."""
        for number, group in list(self._shadows):
            if number == node:
                self.left(node, group)

    def after(self, node: int, group: Group, log: StreamLog) -> None:
        """`node` has handled an event; this is one of its groups."""
        shadow = self.shadow(node, group.group)
        if (log.last_index, log.durable_index) != (shadow.last, shadow.durable):
            raise Violation(
                "the log is what was written to it",
                f"{shadow}: {log.last_index}, {log.durable_index} durable, not {shadow.last}, {shadow.durable}",
            )
        if group.role is Role.LEADER and shadow.history.leaders.get(group.term) != node:
            shadow.elected(group.term, group.configuration)
        if group.commit != shadow.commit:
            self._commit_moved(shadow, group, shadow.in_force or group.configuration)
        shadow.has_in_force(group.configuration)
        self._check_offsets(shadow, group, log)

    def _commit_moved(self, shadow: Shadow, group: Group, before: Configuration) -> None:
        """A commit may begin the next configuration at once: what is before that was committed under the one before."""
        history = shadow.history
        changed_at = shadow.configurations[-1][0] if shadow.configurations else 0
        for index in shadow.commit_moved(group.commit, group.term):
            self._check_quorum(shadow, index, group.configuration if 0 < changed_at <= index else before)
            if history.leaders.get(group.term) != shadow.node or history.committed[group.commit] != group.term:
                raise Violation(
                    "the leader commits first, and by an entry of its term",
                    f"{shadow}, {group.role} in term {group.term}, commits {group.commit}",
                )

    def _check_quorum(self, leader: Shadow, index: int, configuration: Configuration) -> None:
        """Whom the leader counts is its business; who really has the entry on disk, or had it, is ours."""
        history = leader.history
        term = history.committed[index]
        holders = {node for node in configuration.members if self.shadow(node, history.group).holds(index, term)}
        holders |= {gone.node for gone in self._gone if gone.history is history and gone.holds(index, term)}
        if not is_quorum(holders, configuration):
            raise Violation(
                "what is committed is durable on a quorum",
                f"{leader} commits ({index}, term {term}); only {sorted(holders)} have it of {configuration}",
            )

    def _check_offsets(self, shadow: Shadow, group: Group, log: StreamLog) -> None:
        start, end = log.start_offset, log.next_offset
        seen = (group.commit, start, end)
        if seen == shadow.offsets_seen:
            return
        shadow.offsets_seen = seen
        # A log start is committed when it is set, so after a restart it is what is known of the high watermark.
        high_watermark = max(start, log.offset_after(group.commit))
        if not shadow.start_offset <= start <= high_watermark <= end or high_watermark < shadow.high_watermark:
            raise Violation(
                "log start <= high watermark <= log end, and neither of the first two falls",
                f"{shadow}: {start}, {high_watermark}, {end}; before {shadow.start_offset}, {shadow.high_watermark}",
            )
        shadow.start_offset, shadow.high_watermark = start, high_watermark

    # ---- what a node makes of what is committed

    def took(self, node: int, replica: Replica) -> None:
        """`node` has carried out what its group wants; this is its replica."""
        log, index = replica.log, replica.group.commit
        committed = max(log.start_offset, log.offset_after(max(index, log.first_index - 1)))
        if replica.high_watermark != committed:
            raise Violation(
                "a replica's watermark is what is committed",
                f"n{node} of group {replica.stream}: {replica.high_watermark}, not {committed}",
            )
        if index > log.first_index - 1 and log.application[0] <= index:
            self.producers_known(node, replica.stream, index, producers_state(replica))

    def producers_known(self, node: int, group: int, index: int, state: bytes) -> None:
        if self._producers.setdefault((group, index), state) != state:
            raise Violation("producers are known alike", f"n{node} of group {group} knows others at {index}")

    def command_applied(self, node: int, offset: int, machine: Machine) -> None:
        """`node` has applied all commands of the cluster's log before `offset`."""
        self.state_reached(node, offset, encode_command(machine.snapshot()))

    def state_reached(self, node: int, offset: int, state: bytes) -> None:
        known = self._states.setdefault(offset, state)
        if known != state:
            raise Violation(
                "the cluster's state is the same everywhere", f"n{node} at offset {offset} has {state!r}, not {known!r}"
            )

    def check_replay(self, group: int, machine: Machine) -> None:
        """All that was ever committed, from the start, gives the state that nodes have which began at a snapshot."""
        replayed = Machine()
        for data in self.history(group).committed_data():
            for record in read_records(data):
                replayed.apply(decode_command(record.value or b""))
        if encode_command(replayed.snapshot()) != encode_command(machine.snapshot()):
            raise Violation("replay gives the same state", f"{machine.state.to_json()}")

    def check_producers(self, group: int) -> None:
        follow: dict[int, int] = {}
        for data in self.history(group).committed_data():
            header = read_header(data)
            if header.producer_id >= 0:
                expected = follow.get(header.producer_id, 0)
                check(
                    header.base_sequence == expected,
                    "an idempotent producer's batches are there once, in order",
                    f"group {group}, producer {header.producer_id}: {header.base_sequence} instead of {expected}",
                )
                follow[header.producer_id] = expected + header.record_count

    # ---- what a node says

    def sent(self, envelope: Envelope, store: Store) -> None:
        """`store` knows which terms and votes of the sender are durable."""
        for message in envelope.messages:
            if isinstance(message, VoteRequest | VoteResponse) and message.pre:
                continue  # binds nobody, and speaks of a term to come
            match message:
                case VoteRequest():
                    self._voted(message, message.source, store)
                case VoteResponse(granted=True):
                    self._voted(message, message.destination, store)
                case AppendResponse() | HeartbeatResponse():
                    shadow = self.shadow(message.source, message.group)
                    if message.match > shadow.durable:
                        raise Violation(
                            "nobody acknowledges what is not durable",
                            f"{shadow} acknowledges {message.match}, {shadow.durable} is durable",
                        )
                case _:
                    pass
            leads = isinstance(message, AppendRequest | Heartbeat | TakeOver)
            agreed = FOUNDED.term if message.group in self._founded and not leads else 0
            if message.term > max(store.vote(message.group).term, agreed):
                raise Violation("terms are durable before they are spoken of", f"{message}")

    def _voted(self, message: VoteRequest | VoteResponse, candidate: int, store: Store) -> None:
        self.history(message.group).voted(message.source, message.term, candidate)
        if store.vote(message.group) != (message.term, candidate):
            raise Violation("votes are durable before they are given", f"{message}")

    # ---- what clients see

    def acknowledged(self, group: int, offset: int, value: bytes) -> None:
        """A client is told that its batch with `value` is committed and begins at `offset`."""
        history = self.history(group)
        index = history.index_of_batch(offset)
        if index is None:
            raise Violation("what is acknowledged is committed", f"group {group}, offset {offset}: {value!r}")
        made = history.made[index, history.committed[index]]
        check(value in made.data, "an acknowledgement names the batch", f"group {group}: {value!r} is not at {index}")
        floor = self._read_floors[group]
        self._read_floors[group] = ReadFloor(max(floor.index, index), floor.start_offset)

    def read_asked(self, group: int) -> ReadFloor:
        self.history(group)
        return self._read_floors[group]

    def read_answered(self, group: int, floor: ReadFloor, replica: Replica, offset: int) -> None:
        """A read that was asked when `floor` held is served up to the replica's watermark, from `offset` on."""
        log, end = replica.log, replica.high_watermark
        history = self.history(group)
        seen = history.next_offset(floor.index)
        check(end >= seen, "reads are linearizable", f"group {group}: up to {end}, after {seen}")
        check(
            log.start_offset >= floor.start_offset,
            "the earliest offset never falls",
            f"group {group}: {log.start_offset} after {floor.start_offset}",
        )
        index = history.index_before(end)
        now = self._read_floors[group]
        self._read_floors[group] = ReadFloor(max(now.index, index), max(now.start_offset, log.start_offset))
        self.check_content(group, index, log, offset)

    def check_content(self, group: int, index: int, log: StreamLog, offset: int, bytes_max: int = 4096) -> int:
        """Read from `offset`, when there is something; returns the offset behind what was read."""
        history = self.history(group)
        end = history.next_offset(index)
        if not log.start_offset <= offset < end:
            return offset
        data = chunk_bytes(log.read(offset, index, bytes_max))
        next_offset = history.check_served(offset, data)
        check(offset < next_offset <= end, "served is committed", f"group {group}: {offset} to {next_offset} of {end}")
        return next_offset
