"""The clients of the simulated cluster: they write batches, read, and remember what they were promised.

They ask nodes that believe to lead, and now and then one that does not. Every request has a deadline, and must be
answered by then, unless the node died. A refusal without a reason to doubt (not leader, busy) is forgotten; an
uncertain end (leadership lost, deadline passed) may or may not have been committed. An acknowledgement is a promise
that `Invariants` holds the cluster to.
"""

from dataclasses import dataclass
from random import Random

from tidelog.raft import Answer, Committed, EntryKind, Readable, Refusal, Refused, Role
from tidelog.wire.records import Record, build_batch

from .history import Violation
from .invariants import Invariants
from .node import Answered, SimNode
from .scheduler import MILLISECOND, SECOND, Scheduler

GRACE = 200 * MILLISECOND  # between a deadline and an answer; a node looks at its deadlines at least each heartbeat


@dataclass(slots=True)
class Tally:
    proposed: int = 0
    acknowledged: int = 0
    uncertain: int = 0
    reads: int = 0


class Client:
    def __init__(
        self, nodes: dict[int, SimNode], groups: range, scheduler: Scheduler, invariants: Invariants, rng: Random
    ) -> None:
        self.tally = Tally()
        self._acknowledged = dict.fromkeys(groups, 0)
        self._quiet_until = 0
        self._nodes = nodes
        self._groups = groups
        self._scheduler = scheduler
        self._invariants = invariants
        self._rng = rng

    def act(self) -> None:
        """One request, somewhere; or, now and then, a pause in which groups may fall asleep."""
        if self._rng.random() < 0.02:
            self.rest(self._rng.randint(0, SECOND))
        if self._scheduler.now < self._quiet_until:
            return
        group = self._rng.choice(self._groups)
        node = self._pick_node(group)
        if node is None:
            return
        if self._rng.random() < 0.25:
            self.read(node, group)
        else:
            self.write(node, group)

    def rest(self, duration: int) -> None:
        """Ask nothing for a while."""
        self._quiet_until = self._scheduler.now + duration

    def acknowledged(self, group: int) -> int:
        return self._acknowledged[group]

    def leader(self, group: int) -> SimNode | None:
        """A node that believes to lead; the one of the latest term when there are several."""
        leaders = [
            (known.term, node.number)
            for node in self._nodes.values()
            if (known := node.group(group)) is not None and known.role is Role.LEADER
        ]
        return self._nodes[max(leaders)[1]] if leaders else None

    def _pick_node(self, group: int) -> SimNode | None:
        carriers = [node for node in self._nodes.values() if node.group(group) is not None]
        if not carriers:
            return None
        believers = [node for node in carriers if node.host.group(group).role is Role.LEADER]
        return self._rng.choice(believers if believers and self._rng.random() < 0.95 else carriers)

    # ---- requests

    def write(self, node: SimNode, group: int) -> None:
        values = [self._value(group) for _ in range(self._rng.choice((1, 1, 2, 5)))]
        batches = [self._batch(value) for value in values]

        def answered(answer: Answer | Refusal) -> None:
            if isinstance(answer, Committed):
                self.tally.acknowledged += len(values)
                self._acknowledged[group] += len(values)
                for place, value in enumerate(values, start=answer.index - len(values) + 1):
                    self._invariants.acknowledged(group, place, value)
                self._doubt_others(node, group)
            elif isinstance(answer, Refused):
                self.tally.uncertain += len(values)

        deadline_ms, expecting = self._with_deadline(node, answered)
        node.propose(group, EntryKind.DATA, batches, deadline_ms, expecting)

    def read(self, node: SimNode, group: int) -> None:
        floor = self._invariants.read_asked(group)

        def answered(answer: Answer | Refusal) -> None:
            if isinstance(answer, Readable):
                self.tally.reads += 1
                log = node.log(group)
                offset = self._rng.randint(log.start_offset, log.next_offset)
                self._invariants.read_answered(group, floor, answer.index, log, offset)

        deadline_ms, expecting = self._with_deadline(node, answered)
        node.read(group, deadline_ms, expecting)

    def _doubt_others(self, leader: SimNode, group: int) -> None:
        """Whoever else believes to lead is asked to read at once: it must not answer without what was just written."""
        for node in self._nodes.values():
            known = node.group(group)
            if node is not leader and known is not None and known.role is Role.LEADER:
                self._scheduler.after(0, lambda node=node: self._read_if_there(node, group), "client doubts", node)

    def _read_if_there(self, node: SimNode, group: int) -> None:
        if node.group(group) is not None:
            self.read(node, group)

    def move_log_start(self, node: SimNode, group: int, offset: int) -> None:
        deadline_ms, expecting = self._with_deadline(node, lambda answer: None)
        node.move_log_start(group, offset, deadline_ms, expecting)

    def _with_deadline(self, node: SimNode, answered: Answered) -> tuple[int, Answered]:
        """A deadline by the node's clock, and `answered` with an eye on that it is called in time."""
        patience_ms = self._rng.choice((100, 500, 2000))
        life = node.life
        pending = True

        def settle(answer: Answer | Refusal) -> None:
            nonlocal pending
            pending = False
            answered(answer)

        def expect() -> None:
            if pending and node.alive and node.life == life:
                raise Violation("every request ends", f"{node} has not answered in {patience_ms} ms")

        delay = node.clock.world_delay(patience_ms * MILLISECOND) + GRACE
        self._scheduler.after(delay, expect, "client expects an answer of", node)
        return node.now_ms + patience_ms, settle

    # ---- batches

    def _value(self, group: int) -> bytes:
        self.tally.proposed += 1
        return b"group %d value %d;" % (group, self.tally.proposed)

    def _batch(self, value: bytes) -> bytearray:
        padding = bytes(self._rng.choice((0, 10, 100, 700, 2500)))
        records = [Record(value + padding)] + [Record(b"more")] * self._rng.choice((0, 0, 1, 4))
        return build_batch(records)
