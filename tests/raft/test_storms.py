"""Everything at once, by seed: lost, repeated and reordered messages, slow disks, crashes, cuts, changes of members,
transfers, deleted prefixes. The world checks safety after every event; at the end, in fair weather, all must agree."""

from random import Random

import pytest

from tests.raft.harness import World
from tidelog.raft import Action, Change, Committed, RaftSettings, Role

NODES = (1, 2, 3, 4, 5)
EVENTS = 1_000
SETTINGS = RaftSettings(
    append_bytes_max=12, window_messages_max=3, window_entries_max=5, window_bytes_max=30, proposals_max=8
)


class Storm:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World([1, 2, 3], extra=[4, 5], settings=SETTINGS, seed=seed)
        self.written = 0
        self.acknowledged: set[bytes] = set()
        self.waiting: list[tuple[int, int, bytes]] = []

    def rage(self) -> None:
        deeds = [
            (60, self.deliver),
            (30, self.sync),
            (12, self.tick),
            (20, self.propose),
            (2, self.lose),
            (2, self.repeat),
            (1, self.crash),
            (3, self.restart),
            (1, self.cut),
            (2, self.world.heal),
            (1, self.transfer),
            (1, self.change),
            (2, self.delete),
            (2, self.read),
        ]
        weights = [weight for weight, _ in deeds]
        for _ in range(EVENTS):
            self.random.choices([deed for _, deed in deeds], weights)[0]()
            self.collect()

    def calm(self) -> None:
        world = self.world
        world.heal()
        world.restart(*(set(NODES) - set(world.up)))
        world.run(20_000)
        self.collect()
        ticket = world.propose(world.leader, b"last")
        world.run(1_000)
        assert world.committed(world.leader, ticket)
        leader = world.leader
        members = world.group(leader).configuration.members
        for node in sorted(members):
            log, best = world.log(node), world.log(leader)
            first = max(log.first_index, best.first_index)
            assert log.stored[first - log.first_index :] == best.stored[first - best.first_index :]
            assert world.group(node).commit == best.last_index
        kept = {content for _, content in world.settled.values()}
        assert self.acknowledged <= kept, "an acknowledged entry is lost"

    def collect(self) -> None:
        for node in self.world.up:
            self.world.collect(node)
        still: list[tuple[int, int, bytes]] = []
        for node, ticket, content in self.waiting:
            answer = self.world.nodes[node].answers.get(ticket)
            if isinstance(answer, Committed):
                self.acknowledged.add(content)
            elif answer is None:
                still.append((node, ticket, content))
        self.waiting = still

    def any_up(self) -> int | None:
        return self.random.choice(self.world.up) if self.world.up else None

    def deliver(self) -> None:
        wire = self.world.wire
        for _ in range(min(len(wire), 4)):
            message = wire.pop(self.random.randrange(len(wire)) if self.random.random() < 0.3 else 0)
            if (message.source, message.destination) not in self.world.broken:
                self.world.deliver(message)

    def lose(self) -> None:
        if self.world.wire:
            del self.world.wire[self.random.randrange(len(self.world.wire))]

    def repeat(self) -> None:
        if self.world.sent:
            self.world.deliver(self.random.choice(self.world.sent[-200:]))

    def sync(self) -> None:
        node = self.any_up()
        if node is not None:
            log = self.world.log(node)
            up_to = self.random.choice([None, None, self.random.randint(log.durable_index, log.last_index)])
            self.world.sync(node, up_to)

    def tick(self) -> None:
        self.world.now_ms += self.random.choice([1, 20, 100, 100, 400])
        for node in self.world.up:
            deadline = self.world.group(node).next_deadline_ms
            if deadline is not None and deadline <= self.world.now_ms:
                self.world.group(node).tick(self.world.now_ms)

    def propose(self) -> None:
        node = self.any_up()
        if node is not None and self.world.group(node).role is Role.LEADER:
            self.written += 1
            content = b"entry-%d" % self.written
            ticket = self.world.propose(node, content, within_ms=2_000)
            if isinstance(ticket, int):
                self.waiting.append((node, ticket, content))

    def read(self) -> None:
        node = self.any_up()
        if node is not None:
            self.world.read(node, within_ms=500)

    def crash(self) -> None:
        node = self.any_up()
        if node is not None:
            self.world.crash(node)
            self.waiting = [wait for wait in self.waiting if wait[0] != node]

    def restart(self) -> None:
        down = sorted(set(NODES) - set(self.world.up))
        if down:
            self.world.restart(self.random.choice(down))

    def cut(self) -> None:
        self.world.cut(*self.random.sample(NODES, 2))

    def transfer(self) -> None:
        for node in self.world.leaders:
            self.world.transfer(node, self.random.choice(NODES))

    def change(self) -> None:
        for node in self.world.leaders:
            picked = self.random.sample(NODES, self.random.randint(1, 3))
            self.world.change(node, *(Change(self.random.choice(list(Action)), other) for other in picked))

    def delete(self) -> None:
        node = self.any_up()
        if node is None:
            return
        log, commit = self.world.log(node), self.world.group(node).commit
        commit = min(commit, log.durable_index)
        if commit > log.first_index:
            self.world.delete_before(node, self.random.randint(log.first_index, commit))


@pytest.mark.parametrize("seed", range(60))
def test_safety_in_a_storm_and_agreement_after_it(seed: int) -> None:
    storm = Storm(seed)
    storm.rage()
    storm.calm()
