"""What goes wrong: each method is one fault, named in `mix.KINDS`. Whoever dies comes back after a while.

A membership change is asked of a leader like any other request; nothing here forces one. A node leaves a group (and
deletes its log) only after its removal is committed, and never returns to it: a replica that forgot its votes must not
vote again under the same name.
"""

from collections.abc import Callable, Sequence
from random import Random

from tidelog.raft import Action, Change, Configuration

from .client import Client
from .invariants import Invariants
from .mix import ROUGH, STORMY, Mix
from .network import CALM, Network
from .node import SimNode
from .scheduler import MILLISECOND, SECOND, Scheduler

BLOCK = 4096


class Faults:
    def __init__(
        self,
        mix: Mix,
        nodes: dict[int, SimNode],
        scheduler: Scheduler,
        network: Network,
        client: Client,
        invariants: Invariants,
        rng: Random,
    ) -> None:
        self._mix = mix
        self._nodes = nodes
        self._scheduler = scheduler
        self._network = network
        self._client = client
        self._invariants = invariants
        self._rng = rng
        self.striking = True
        self._left: set[tuple[int, int]] = set()  # (node, group) that must not meet again

    def strike(self) -> str:
        """One fault, drawn by its weight; returns its name."""
        names = list(self._mix.faults)
        name = self._rng.choices(names, list(self._mix.faults.values()))[0]
        getattr(self, name)()
        return name

    # ---- nodes

    def power_cut(self) -> None:
        for node in self._pick_alive():
            node.cut_power()
            self.start_later(node)

    def kill(self) -> None:
        for node in self._pick_alive():
            node.kill()
            self.start_later(node)

    def die_in_write(self) -> None:
        for node in self._pick_alive():
            self._rng.choice((node.disk.crash_after, node.disk.kill_after))(self._rng.randint(0, 12))

    def all_die(self) -> None:
        for node in self._nodes.values():
            if node.alive:
                self._rng.choice((node.cut_power, node.kill))()
                self.start_later(node)

    def start_later(self, node: SimNode) -> None:
        delay = int(self._rng.expovariate(1.0) * self._rng.choice((50, 300, 1000)) * MILLISECOND)
        self._scheduler.after(delay, lambda: self._start(node), node, "starts")

    def _start(self, node: SimNode) -> None:
        if node.alive:
            return
        if self.striking and "die_in_write" in self._mix.faults and self._rng.random() < 0.3:
            node.disk.crash_after(self._rng.randint(0, 40))  # in the middle of its recovery, or soon after
        node.start()

    # ---- disks

    def disk_full(self) -> None:
        for node in self._pick_alive():
            node.disk.space_bytes = node.disk.used_bytes + self._rng.choice((0, 1, 4)) * BLOCK

    def disk_freed(self) -> None:
        for node in self._nodes.values():
            node.disk.space_bytes = None

    def sync_failure(self) -> None:
        for node in self._pick_alive():
            node.disk.fail_next_sync()

    def slow_disk(self) -> None:
        for node in self._pick_alive():
            node.slowness = self._rng.choice((10, 100, 1000))
            self._soon(0, 2000, lambda node=node: self._quicken(node), node, "has a quick disk again")

    def _quicken(self, node: SimNode) -> None:
        node.slowness = 1

    # ---- network and clocks

    def isolate(self) -> None:
        for node in self._pick_alive():
            self._isolate(node)

    def split(self) -> None:
        numbers = list(self._nodes)
        self._rng.shuffle(numbers)
        middle = self._rng.randint(1, len(numbers) - 1)
        self._network.split(numbers[:middle], numbers[middle:])

    def one_way_cut(self) -> None:
        source, target = self._rng.sample(list(self._nodes), 2)
        self._network.cut(source, target)

    def heal(self) -> None:
        self._network.heal()

    def weather(self) -> None:
        self._network.weather = self._rng.choice((CALM, ROUGH, STORMY))

    def clock_jump(self) -> None:
        """Far enough to be noticed: less than half an election timeout at once would be a drift that leases exclude."""
        for node in self._pick_alive():
            node.clock.jump(self._noticed_jump())

    def _noticed_jump(self) -> int:
        noticed = self._mix.raft.election_timeout_ms * MILLISECOND
        return self._rng.choice((noticed, 3 * noticed, 3600 * SECOND))

    # ---- schemes: several faults that together attack one rule

    def depose(self) -> None:
        """Cut a leader off until others have elected another: what it goes on to append is for nothing.

        Sometimes the network heals just when the new leader dies: then the old one's useless entries stand for election.
        """
        leader = self._client.leader(self._pick_group())
        if leader is not None:
            self._isolate(leader)
            self._soon(500, 1500, self._rng.choice((self.heal, self._heal_and_kill_leader)), "the network heals")

    def _heal_and_kill_leader(self) -> None:
        self.heal()
        leader = self._client.leader(self._pick_group())
        if leader is not None:
            leader.cut_power()
            self.start_later(leader)

    def usurp(self) -> None:
        """A leader hands over and hears no more: it must not take its old lease for a licence to answer reads."""
        group = self._pick_group()
        leader = self._client.leader(group)
        if leader is not None:
            leader.transfer(group, self._rng.choice(list(self._nodes)))
            for number in self._nodes.keys() - {leader.number}:
                self._network.cut(number, leader.number)
            self._soon(100, 800, self.heal, "the network heals")

    def leap(self) -> None:
        """A leader is cut off, and to all others it seems that much time has passed: yet its lease must hold."""
        leader = self._client.leader(self._pick_group())
        if leader is not None:
            self._isolate(leader)
            for node in self._nodes.values():
                if node is not leader:
                    node.clock.jump(self._noticed_jump())
            self._soon(300, 1000, self.heal, "the network heals")

    def forget(self) -> None:
        """One follower hears nothing of the leader, another one forgets what it promised it: yet its lease must hold."""
        leader = self._client.leader(self._pick_group())
        alive = [node for node in self._nodes.values() if node.alive and node is not leader]
        if leader is not None and len(alive) > 1:
            deaf, forgetful = self._rng.sample(alive, 2)
            self._network.isolate(deaf.number, [leader.number])
            self._soon(300, 900, lambda: self._restart(forgetful), forgetful, "restarts")
            self._soon(1000, 1500, self.heal, "the network heals")

    def _restart(self, node: SimNode) -> None:
        if node.alive:
            node.kill()
            node.start()

    # ---- administration

    def transfer(self) -> None:
        group = self._pick_group()
        leader = self._client.leader(group)
        if leader is not None:
            leader.transfer(group, self._rng.choice(list(self._nodes)))

    def trim(self) -> None:
        """Move a log start to somewhere in what is committed."""
        group = self._pick_group()
        leader = self._client.leader(group)
        if leader is not None:
            log, commit = leader.log(group), leader.host.group(group).commit
            high_watermark = max(log.start_offset, log.offset_after(commit))
            offset = self._rng.choice((high_watermark, self._rng.randint(log.start_offset, high_watermark)))
            self._client.move_log_start(leader, group, offset)

    def change_members(self) -> None:
        group = self._pick_group()
        leader = self._client.leader(group)
        if leader is None:
            return
        configuration = leader.host.group(group).configuration
        changes = self._pick_changes(group, configuration)
        for change in changes:
            if change.action is not Action.REMOVE:
                self._nodes[change.node].join(group, self._first_configuration())
        if changes and leader.alive:
            leader.change_members(group, changes, leader.now_ms + 1000, lambda answer: None)

    def leave(self) -> None:
        """A node that was removed from a group, and knows that this is committed, deletes its log of it."""
        for node in self._nodes.values():
            for group in list(node.groups):
                known = node.group(group)
                if known is None or not self._is_removed(node, group):
                    continue
                node.leave(group)
                self._left.add((node.number, group))
                return

    def _is_removed(self, node: SimNode, group: int) -> bool:
        """Whether the last committed configuration, and all that may follow it, are without the node."""
        configurations = [Configuration.decode(data) for data in self._invariants.history(group).configurations()]
        return bool(configurations) and all(node.number not in known.members for known in configurations)

    def _pick_changes(self, group: int, configuration: Configuration) -> Sequence[Change]:
        voters, learners = list(configuration.voters), list(configuration.learners)
        strangers = [
            number
            for number in self._nodes
            if number not in configuration.members and (number, group) not in self._left
        ]
        rng = self._rng
        choices: list[list[Change]] = []
        if strangers:
            choices.append([Change(Action.ADD_LEARNER, rng.choice(strangers))])
            choices.append([Change(Action.ADD_VOTER, rng.choice(strangers)), Change(Action.REMOVE, rng.choice(voters))])
        if learners:  # an exchange of several at once is what joint configurations are for
            incoming = rng.sample(learners, rng.randint(1, len(learners)))
            outgoing = rng.sample(voters, rng.randint(0, len(voters) - 1))
            exchange = [Change(Action.ADD_VOTER, node) for node in incoming]
            exchange += [Change(rng.choice((Action.REMOVE, Action.ADD_LEARNER)), node) for node in outgoing]
            choices += [exchange, exchange, [Change(Action.REMOVE, rng.choice(learners))]]
        if len(voters) > 1:
            choices.append([Change(rng.choice((Action.REMOVE, Action.ADD_LEARNER)), rng.choice(voters))])
        return rng.choice(choices) if choices else []

    # ---- choosing

    def _soon(self, least_ms: int, most_ms: int, action: Callable[[], None], *what: object) -> None:
        """Let something follow, unless the storm is over by then."""

        def follow() -> None:
            if self.striking:
                action()

        self._scheduler.after(self._rng.randint(least_ms, most_ms) * MILLISECOND, follow, *what)

    def _isolate(self, node: SimNode) -> None:
        self._network.isolate(node.number, self._nodes.keys() - {node.number})

    def _first_configuration(self) -> Configuration:
        return Configuration.of(range(1, self._mix.voters + 1))

    def _pick_group(self) -> int:
        return self._rng.randint(1, self._mix.groups)

    def _pick_alive(self) -> list[SimNode]:
        """One node, if any is alive: often a leader, whose fate says most."""
        alive = [node for node in self._nodes.values() if node.alive]
        leader = self._client.leader(self._pick_group())
        if leader is not None and self._rng.random() < 0.4:
            return [leader]
        return [self._rng.choice(alive)] if alive else []
