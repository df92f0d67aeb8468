"""The clients of the simulated cluster: they write batches, read, and remember what they were promised.

They ask nodes that believe to lead, and now and then one that does not. Every request has a deadline, and must be
answered by then, unless the node died. A refusal without a reason to doubt (not leader, busy) is forgotten; an
uncertain end (leadership lost, deadline passed) may or may not have been committed. An acknowledgement is a promise
that `Invariants` holds the cluster to.

Some writes are those of idempotent producers (`writers`), which try until they succeed; what is written to the
cluster's own log are commands (`administrator`).
"""

from dataclasses import dataclass
from random import Random

from tidelog.groups.producers import Written
from tidelog.raft import Refusal, Role
from tidelog.server.replica import Done, Replica
from tidelog.wire.records import Record, build_batch

from .administrator import Administrator
from .history import Violation
from .invariants import Invariants
from .node import SimNode
from .scheduler import MILLISECOND, SECOND, Scheduler
from .writers import Writer

WRITERS = 3  # idempotent ones of each group
GRACE = 200 * MILLISECOND  # between a deadline and an answer; a node looks at its deadlines at least each heartbeat


@dataclass(slots=True)
class Tally:
    proposed: int = 0
    acknowledged: int = 0
    uncertain: int = 0
    reads: int = 0


class Client:
    def __init__(
        self,
        nodes: dict[int, SimNode],
        groups: range,
        cluster_group: int,
        scheduler: Scheduler,
        invariants: Invariants,
        rng: Random,
    ) -> None:
        self.tally = Tally()
        self._cluster_group = cluster_group
        self._administrator = Administrator(sorted(nodes), rng)
        self._writers = {group: [Writer(number) for number in range(1, WRITERS + 1)] for group in groups}
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
        if group == self._cluster_group:
            self._command(node, group)
        elif self._rng.random() < 0.3:
            self._write_once(node, group, self._rng.choice(self._writers[group]))
        else:
            values = [self._value(group) for _ in range(self._rng.choice((1, 1, 2, 5)))]
            self._append(node, group, values, [self._batch(value) for value in values])

    def _command(self, node: SimNode, group: int) -> None:
        if node.cluster_log is not None:
            self.tally.proposed += 1
            value = self._administrator.command(node.cluster_log.machine.state)
            self._append(node, group, [value], [[Record(value)]])

    def _append(self, node: SimNode, group: int, values: list[bytes], contents: list[list[Record]]) -> None:
        offset = 0

        def done(refusal: Refusal | None) -> None:
            if refusal is None:
                place = offset
                for value, records in zip(values, contents, strict=True):
                    self._accept(node, group, place, value)
                    place += len(records)
            else:
                self.tally.uncertain += len(values)

        def ask(replica: Replica) -> None:
            nonlocal offset
            deadline_ms, expecting = self._with_deadline(node, done)
            batches = [build_batch(records) for records in contents]
            offset = replica.append(batches, sum(map(len, contents)), None, deadline_ms, expecting)

        node.request(group, ask)

    def _write_once(self, node: SimNode, group: int, writer: Writer) -> None:
        """What the server does with a batch of an idempotent producer, if it leads."""
        if writer.value is None:
            writer.begin(self._value(group), self._rng.choice((1, 1, 2, 5)))
        value, numbers, batch = writer.value or b"", writer.numbers, writer.batch()

        def ask(replica: Replica) -> None:
            if not replica.ready:
                return
            known = replica.producers.check(numbers, 0)
            if known is not None and not isinstance(known, Written):
                if replica.group.term < max(self._invariants.history(group).leaders):
                    return  # it does not know yet that another leads, and what that one wrote
                raise Violation("a producer that retries is not refused", f"{node} of group {group}: {numbers} {known}")
            offset = 0

            def done(refusal: Refusal | None) -> None:
                if refusal is None and writer.numbers == numbers:
                    writer.succeeded()
                    self._accept(node, group, offset, value)

            if known is None:
                deadline_ms, expecting = self._with_deadline(node, done)
                offset = replica.append([batch], writer.records, numbers, deadline_ms, expecting)
            else:
                offset = known.base_offset
                replica.when_committed(known.index, done)

        node.request(group, ask)

    def _accept(self, node: SimNode, group: int, offset: int, value: bytes) -> None:
        self.tally.acknowledged += 1
        self._acknowledged[group] += 1
        self._invariants.acknowledged(group, offset, value)
        self._doubt_others(node, group)

    def read(self, node: SimNode, group: int) -> None:
        floor = self._invariants.read_asked(group)

        def ask(replica: Replica) -> None:
            def done(refusal: Refusal | None) -> None:
                if refusal is None:
                    self.tally.reads += 1
                    offset = self._rng.randint(replica.log.start_offset, replica.log.next_offset)
                    self._invariants.read_answered(group, floor, replica, offset)

            deadline_ms, expecting = self._with_deadline(node, done)
            replica.read_when_current(deadline_ms, expecting)

        node.request(group, ask)

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
        deadline_ms, expecting = self._with_deadline(node, lambda refusal: None)
        node.request(group, lambda replica: replica.move_start(offset, deadline_ms, expecting))

    def _with_deadline(self, node: SimNode, done: Done) -> tuple[int, Done]:
        """A deadline by the node's clock, and `done` with an eye on that it is called once, and in time."""
        patience_ms = self._rng.choice((100, 500, 2000))
        life = node.life
        pending = True

        def settle(refusal: Refusal | None) -> None:
            nonlocal pending
            if not pending:
                raise Violation("each request has one answer", f"{node} answers again: {refusal}")
            pending = False
            done(refusal)

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

    def _batch(self, value: bytes) -> list[Record]:
        padding = bytes(self._rng.choice((0, 10, 100, 700, 2500)))
        return [Record(value + padding)] + [Record(b"more")] * self._rng.choice((0, 0, 1, 4))
