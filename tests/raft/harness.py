"""A small world for stories about a group: nodes with a log in memory, a network, a clock, all under the test's thumb.

    world = World([1, 2, 3])
    world.elect(1)
    world.cut(1, 3)                    # messages from 1 to 3 are lost
    ticket = world.propose(1, b"x")
    world.settle()                     # everything that can happen without time passing
    world.run(2_000)                   # two seconds pass

After every event the world checks what must always hold: one leader a term, terms and commit indexes that never fall,
and one content for each committed index, for ever.
"""

from collections.abc import Callable, Iterable
from random import Random

from tests.raft.memory_log import MemoryLog, floor_context
from tidelog.raft import (
    Answer,
    Change,
    Committed,
    Configuration,
    Effects,
    EntryKind,
    Group,
    HardState,
    Message,
    RaftSettings,
    Readable,
    Reason,
    Refusal,
    Refused,
    Role,
)

GROUP = 7
SETTLE_STEPS_MAX = 20_000
PATIENT_MS = 60_000


class Node:
    """One process: what it holds in memory, and what its disk holds."""

    def __init__(self, node: int, log: MemoryLog, hard_state: HardState) -> None:
        self.node = node
        self.log = log
        self.hard_state = hard_state
        """On disk."""
        self.unwritten: HardState | None = None
        self.disk_works = True
        """While False, nothing becomes durable."""
        self.group: Group | None = None
        """None while the process is down."""
        self.answers: dict[int, Answer] = {}
        self.commit_seen = 0


class World:
    def __init__(
        self,
        voters: Iterable[int],
        learners: Iterable[int] = (),
        *,
        extra: Iterable[int] = (),
        logs: dict[int, MemoryLog] | None = None,
        hard_states: dict[int, HardState] | None = None,
        settings: RaftSettings | None = None,
        seed: int = 0,
    ) -> None:
        """`extra` are nodes that run, but are no members yet."""
        self.now_ms = 1_000
        self.settings = settings or RaftSettings()
        self.random = Random(seed)
        self.configuration = Configuration.of(voters, learners)
        self.wire: list[Message] = []
        self.nodes: dict[int, Node] = {}
        self.lost: Callable[[Message], bool] = lambda _: False
        """Messages that the network loses, beside those of cut links."""
        self.sent: list[Message] = []
        """Every message ever sent, lost or not."""
        self.broken: set[tuple[int, int]] = set()
        """Links, as (source, destination), on which everything is lost."""
        self.elected: dict[int, int] = {}
        """Term -> who led it, of every term so far."""
        self.settled: dict[int, tuple[int, bytes]] = {}
        """Index -> (term, data) of everything that was ever committed anywhere."""
        for node in sorted({*self.configuration.members, *extra}):
            log = (logs or {}).get(node) or MemoryLog()
            last_term = log.term_at(log.last_index)
            hard_state = (hard_states or {}).get(node, HardState(last_term))
            if not log.floor_context:
                log.floor_context = floor_context(0, self.configuration)
                log.sync(log.durable_index)
            self.nodes[node] = Node(node, log, hard_state)
            self._start(node)

    # Looking

    def group(self, node: int) -> Group:
        group = self.nodes[node].group
        assert group is not None, f"node {node} is down"
        return group

    def log(self, node: int) -> MemoryLog:
        return self.nodes[node].log

    @property
    def up(self) -> list[int]:
        return [node for node, state in self.nodes.items() if state.group is not None]

    @property
    def leaders(self) -> list[int]:
        """Those that believe they lead."""
        return [node for node in self.up if self.group(node).role is Role.LEADER]

    @property
    def leader(self) -> int:
        """The leader of the latest term."""
        assert self.leaders, "nobody leads"
        return max(self.leaders, key=lambda node: self.group(node).term)

    def terms(self, node: int) -> list[int]:
        return [entry.term for entry in self.log(node).stored]

    def data(self, node: int, *, committed: bool = False) -> list[bytes]:
        """What clients have put into the node's log."""
        last = self.group(node).commit if committed else self.log(node).last_index
        return [
            bytes(entry.data) for entry in self.log(node).stored if entry.kind is EntryKind.DATA and entry.index <= last
        ]

    def answer(self, node: int, ticket: int | Refusal) -> Answer | None:
        assert isinstance(ticket, int), ticket
        return self.nodes[node].answers.get(ticket)

    def committed(self, node: int, ticket: int | Refusal) -> bool:
        return isinstance(self.answer(node, ticket), Committed)

    def readable(self, node: int, ticket: int | Refusal) -> int | None:
        answer = self.answer(node, ticket)
        return answer.index if isinstance(answer, Readable) else None

    def refused(self, node: int, ticket: int | Refusal) -> Reason | None:
        answer = self.answer(node, ticket)
        return answer.refusal.reason if isinstance(answer, Refused) else None

    # Events

    def elect(self, node: int) -> None:
        """Have the node win an election, after everyone's patience with an earlier leader has run out.

        At its first attempt it may only learn the others' term.
        """
        for _ in range(2):
            if self.group(node).role is not Role.LEADER:
                self.now_ms += 2 * self.settings.election_timeout_ms
                self.group(node).campaign(self.now_ms)
                self.settle()
        assert self.group(node).role is Role.LEADER, f"node {node} was not elected"

    def propose(self, node: int, *data: bytes, within_ms: int = PATIENT_MS) -> int | Refusal:
        return self.group(node).propose(EntryKind.DATA, data, self.now_ms + within_ms, self.now_ms)

    def read(self, node: int, *, within_ms: int = PATIENT_MS) -> int | Refusal:
        return self.group(node).read(self.now_ms + within_ms, self.now_ms)

    def change(self, node: int, *changes: Change, within_ms: int = PATIENT_MS) -> int | Refusal:
        return self.group(node).change_membership(changes, self.now_ms + within_ms, self.now_ms)

    def transfer(self, node: int, target: int) -> Refusal | None:
        return self.group(node).transfer_leadership(target, self.now_ms)

    def deliver(self, message: Message) -> None:
        """One message arrives now, whatever the network thinks of it."""
        if self.nodes[message.destination].group is not None:
            self.group(message.destination).receive(message, self.now_ms)
            self.collect(message.destination)

    def collect(self, node: int) -> Effects:
        """Take the node's effects: its messages go on the wire, its hard state to its disk."""
        state = self.nodes[node]
        effects = self.group(node).take_effects()
        if effects.hard_state is not None:
            state.unwritten = effects.hard_state
        self.sent.extend(effects.messages)
        self.wire.extend(effects.messages)
        for answer in effects.answers:
            assert answer.ticket not in state.answers, f"ticket {answer.ticket} is answered twice"
            state.answers[answer.ticket] = answer
        self._check(state)
        return effects

    def sync(self, node: int, up_to: int | None = None) -> bool:
        """The node's disk does its work. Says whether there was any."""
        state = self.nodes[node]
        busy = False
        if state.unwritten is not None:
            state.hard_state, state.unwritten = state.unwritten, None
            self.group(node).hard_state_written(state.hard_state, self.now_ms)
            busy = True
        if state.log.sync(up_to):
            self.group(node).written(self.now_ms)
            busy = True
        if busy:
            self.collect(node)
        return busy

    def settle(self) -> None:
        """Whatever can happen without time passing: disks write, messages arrive in order."""
        for _ in range(SETTLE_STEPS_MAX):
            busy = False
            for node in self.up:
                self.collect(node)
                busy |= self.nodes[node].disk_works and self.sync(node)
            arriving, self.wire = self.wire, []
            for message in arriving:
                if (message.source, message.destination) not in self.broken and not self.lost(message):
                    self.deliver(message)
                    busy = True
            if not busy and not self.wire:
                return
        raise AssertionError("the nodes never stop talking")

    def run(self, ms: int) -> None:
        """Time passes."""
        end_ms = self.now_ms + ms
        self.settle()
        while self.now_ms < end_ms:
            deadlines = [deadline for node in self.up if (deadline := self.group(node).next_deadline_ms) is not None]
            self.now_ms = min(end_ms, max(self.now_ms + 1, min(deadlines, default=end_ms)))
            for node in self.up:
                deadline = self.group(node).next_deadline_ms
                if deadline is not None and deadline <= self.now_ms:
                    self.group(node).tick(self.now_ms)
            self.settle()

    def delete_before(self, node: int, index: int) -> None:
        """Retention deletes a prefix of a node's log; the log remembers the configuration in force there."""
        log = self.log(node)
        log.delete_before(index, log.configuration_before(index))

    # Trouble

    def cut(self, source: int, *destinations: int) -> None:
        """Messages from source to destinations are lost; the other direction works."""
        self.broken |= {(source, destination) for destination in destinations}

    def isolate(self, *island: int) -> None:
        """Nothing passes between the island and the rest."""
        for inside in island:
            for outside in self.nodes.keys() - set(island):
                self.cut(inside, outside)
                self.cut(outside, inside)

    def heal(self) -> None:
        self.broken.clear()
        self.lost = lambda _: False

    def crash(self, *nodes: int) -> None:
        for node in nodes:
            self.nodes[node].group = None
            self.nodes[node].unwritten = None

    def restart(self, *nodes: int) -> None:
        for node in nodes:
            state = self.nodes[node]
            state.log = state.log.crash()
            state.disk_works = True
            state.answers = {}
            self._start(node)

    def wipe(self, node: int, configuration_index: int, configuration: Configuration) -> None:
        """The node lost its disk, and begins again blank; it is told the last committed configuration."""
        state = self.nodes[node]
        state.log = MemoryLog(floor_context=floor_context(configuration_index, configuration))
        state.log.sync()
        state.hard_state = HardState()
        self._start(node)

    def _start(self, node: int) -> None:
        state = self.nodes[node]
        state.commit_seen = 0
        state.group = Group(
            GROUP,
            node,
            state.log,
            state.hard_state,
            state.log.configurations(),
            self.settings,
            Random(self.random.random()),
            self.now_ms,
        )

    # What must always hold

    def _check(self, state: Node) -> None:
        group = self.group(state.node)
        if group.role is Role.LEADER:
            first = self.elected.setdefault(group.term, state.node)
            assert first == state.node, f"nodes {first} and {state.node} both lead term {group.term}"
        assert group.commit >= state.commit_seen, f"node {state.node}: commit fell"
        log = state.log
        for index in range(max(state.commit_seen + 1, log.first_index), group.commit + 1):
            entry = log.stored[index - log.first_index]
            content = (entry.term, bytes(entry.data))
            first = self.settled.setdefault(index, content)
            assert first == content, f"index {index} committed as {first} and, on node {state.node}, as {content}"
        state.commit_seen = group.commit
