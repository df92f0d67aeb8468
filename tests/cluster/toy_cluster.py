"""A toy cluster that does what the planner says, more or less: groups with members and a leader, and no logs.

It keeps what is true beside what was reported, so that it can be checked that nothing asked for is harmful:

* none may begin again with nothing whom its group still counts on, none is readmitted then; no leader is voted out;
* after a change a majority of the voters is alive and has its disk, if it was so before and the report was not old.
"""

import random
from dataclasses import dataclass, field
from uuid import UUID

from tidelog.cluster import (
    CLUSTER_STREAM,
    AssignReplicas,
    CreateTopic,
    FoundCluster,
    Machine,
    NoteLeaders,
    Partition,
    ReadmitReplicas,
    RegisterNode,
    SetDraining,
)
from tidelog.cluster.planner import Action, ChangeMembers, Health, Planner, PlannerSettings, Submit, TransferLeader

NODES: tuple[int, ...] = (1, 2, 3, 4, 5)
RACKS = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b"}
CONFIG: tuple[int, ...] = (1, 2, 3)
ROUND_MS = 500
REPORT_ROUNDS_MAX = 3
"""A report comes at least so often: sooner than `stable_ms`."""
SETTINGS = PlannerSettings(
    replace_after_ms=20_000, stable_ms=2_000, leader_balance_ms=1_000, actions_max=8, moves_max=2
)


@dataclass
class Group:
    voters: set[int]
    learners: set[int] = field(default_factory=set[int])
    whole: set[int] = field(default_factory=set[int])
    """Who has the log."""
    leader: int = -1
    term: int = 0
    index: int = 1
    fresh: bool = False
    """Whether what was last reported is what is."""

    @property
    def members(self) -> set[int]:
        return self.voters | self.learners


class Toy:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.machine = Machine()
        self.machine.apply(FoundCluster("toy", CONFIG))
        self.disks = dict.fromkeys(NODES, 1)
        self.alive = dict.fromkeys(NODES, 0)
        self.dead: dict[int, int] = {}
        for node in NODES:
            self._register(node)
        self.machine.apply(CreateTopic("any", UUID(int=1), [(1, 2, 3), (2, 4, 5), (5,)], {}))
        self.machine.apply(CreateTopic("at home", UUID(int=2), [(1, 2, 3), (5, 4, 3)], {"leader.rack": "b"}))
        self.groups = {p.stream: Group(set(p.replicas), whole=set(p.replicas)) for p in self.partitions()}
        self.groups[CLUSTER_STREAM] = Group(set(CONFIG), whole=set(CONFIG))
        self.planner = Planner(SETTINGS)
        self.obedience = 0.6

    def partitions(self) -> list[Partition]:
        return [p for topic in self.machine.state.topics.values() for p in topic.partitions]

    def able(self, group: Group) -> set[int]:
        """Voters that are alive and have their disk."""
        return {node for node in group.voters if node in self.alive and node in group.whole}

    def works(self, group: Group) -> bool:
        return 2 * len(self.able(group)) > len(group.voters)

    def _register(self, node: int) -> None:
        self.machine.apply(RegisterNode(node, f"h{node}", 1, RACKS[node], directory=f"disk {self.disks[node]}"))

    # What befalls it

    def die(self, node: int) -> None:
        if self.alive.pop(node, None) is not None:
            self.dead[node] = self.now_ms

    def come_back(self, node: int) -> None:
        if self.dead.pop(node, None) is not None:
            self.alive[node] = self.now_ms
            self._register(node)

    def lose_disk(self, node: int) -> None:
        """Unless that is the end of a group, whatever anybody does."""
        for group in self.groups.values():
            if 2 * len(group.voters & group.whole - {node}) <= len(group.voters):
                return
        self.die(node)
        self.disks[node] += 1
        for group in self.groups.values():
            group.whole.discard(node)

    def drain(self, node: int) -> None:
        self.machine.apply(SetDraining(node, not self.machine.state.nodes[node].draining))

    def reassign(self, node: int) -> None:
        partition = self.random.choice(self.partitions())
        others = [n for n in NODES if n != node]
        replicas = (node, *self.random.sample(others, len(partition.replicas) - 1))
        self.machine.apply(AssignReplicas([(partition.stream, partition.replicas, replicas)]))

    def change_controller(self, _node: int) -> None:
        self.planner = Planner(SETTINGS)

    # Time

    def round(self) -> None:
        self.now_ms += ROUND_MS
        for stream, group in self.groups.items():
            if group.leader not in self.able(group):
                group.leader = -1
                if self.works(group):
                    group.leader, group.term = self.random.choice(sorted(self.able(group))), group.term + 1
                    group.fresh = False
            if group.leader >= 0:
                filled = {n for n in group.learners if n in self.alive and self.random.random() < 0.7}
                group.whole |= {n for n in filled if self._may_begin(stream, n)}
            late = self.now_ms // ROUND_MS % REPORT_ROUNDS_MAX != 0 and self.random.random() > self.obedience
            if group.leader >= 0 and stream != CLUSTER_STREAM and not group.fresh and not late:
                voters, learners = tuple(sorted(group.voters)), tuple(sorted(group.learners))
                row = (stream, group.leader, group.term, group.index, voters, learners)
                self.machine.apply(NoteLeaders([row]))
                group.fresh = True
        zero = self.groups[CLUSTER_STREAM]
        if zero.leader < 0:
            return
        zero.fresh = True
        members = (tuple(sorted(zero.voters)), tuple(sorted(zero.learners)))
        health = Health(dict(self.alive), dict(self.dead))
        actions = self.planner.plan(self.machine.state, health, members, self.now_ms, zero.leader)
        assert len(actions) <= SETTINGS.actions_max
        for action in actions:
            self._carry_out(action)
            self._check()

    def _check(self) -> None:
        """Nobody that lost its disk may begin a stream whose group still counts on its vote."""
        for p in self.partitions():
            group = self.groups[p.stream]
            for node in group.voters & set(p.replicas) & set(self.alive) - group.whole:
                assert node in p.absent, f"{node} would begin {p} with nothing, a voter of {group}"

    def _may_begin(self, stream: int, node: int) -> bool:
        if stream == CLUSTER_STREAM:
            return node not in self.machine.state.absent
        partition = next(p for p in self.partitions() if p.stream == stream)
        return node in partition.replicas and node not in partition.absent

    def _carry_out(self, action: Action) -> None:
        if self.random.random() > self.obedience:
            return
        if isinstance(action, Submit):
            if isinstance(action.command, ReadmitReplicas):
                for stream, node in action.command.rows:
                    assert node not in self.groups[stream].members, "it would begin again while it is counted on"
            self.machine.apply(action.command)
            return
        group = self.groups[action.stream]
        if group.leader < 0 or not self.works(group):
            assert not group.fresh or group.leader < 0 or not isinstance(action, ChangeMembers), "it cannot succeed"
            return
        if isinstance(action, TransferLeader):
            assert not group.fresh or action.target in self.able(group) - {group.leader}
            if action.target in self.able(group) - {group.leader}:
                group.leader, group.term, group.fresh = action.target, group.term + 1, False
            return
        self._change(group, action)

    def _change(self, group: Group, action: ChangeMembers) -> None:
        assert not set(action.remove) & (set(action.add_learners) | set(action.promote))
        if group.fresh:
            assert group.leader not in action.remove
            assert group.leader not in action.add_learners
            assert set(action.promote) <= group.learners
            assert set(action.remove) <= group.members
            assert set(action.promote) | set(action.add_learners) - group.voters <= set(self.alive)
        if not set(action.promote) <= group.whole or group.leader in (*action.remove, *action.add_learners):
            return  # it has not caught up
        leaving = set(action.remove) | set(action.add_learners)
        after = Group((group.voters | set(action.promote)) - leaving, whole=group.whole)
        if not self.works(after):
            assert not group.fresh, f"{action} takes the majority away from {group}"
            return
        learners = (group.learners | set(action.add_learners)) - after.voters - set(action.remove)
        group.voters, group.learners = after.voters, learners
        group.index, group.fresh = group.index + 1, False

    # Whether all is well

    def trouble(self) -> list[str]:
        state = self.machine.state
        troubles: list[str] = []
        unfit = {node for node in NODES if state.nodes[node].draining} | set(self.dead)
        for topic in state.topics.values():
            for p in topic.partitions:
                group = self.groups[p.stream]
                rack = topic.configs.get("leader.rack")
                home = [n for n in p.replicas if RACKS[n] == rack] or p.replicas
                if group.voters != set(p.replicas) or group.learners or p.absent or group.leader != home[0]:
                    troubles.append(f"{p}: {group}")
                if unfit & set(p.replicas):
                    troubles.append(f"{p} is on {unfit}")
                if not self.able(group) >= group.voters:
                    troubles.append(f"{p} counts on those who are not able: {group}")
        zero, alive = self.groups[CLUSTER_STREAM], set(self.alive)
        if zero.voters & alive != set(CONFIG) & alive or zero.learners & alive != alive - set(CONFIG) or state.absent:
            troubles.append(f"group 0: {zero}, absent {state.absent}")
        return troubles
