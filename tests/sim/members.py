"""Who joins and leaves a group, while everything else goes on.

A change is asked of a leader like any other request; nothing here forces one. A node leaves a group (and deletes its
log) only when its removal is committed. It may return, blank: a newcomer, who is told the last committed configuration,
is first a learner, and has no vote until its log names it.

A node that loses its disk has forgotten its logs and its votes, so it must not go on in its groups: it is absent from
them until its removal is committed, and then is a stranger like others. Only one disk is lost at a time, and only when
a quorum remains of each group: what a majority has lost is gone.
"""

from tidelog.raft import Action, Change, Configuration, quorum_after

from .history import is_quorum
from .node import SimNode
from .scheduler import MILLISECOND
from .stage import Stage

MEND_INTERVAL = 200 * MILLISECOND


class Members:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._first = Configuration.of(range(1, stage.mix.voters + 1))
        self._absent: set[tuple[int, int]] = set()  # (node, group): its disk was lost, and it is still a member

    def change_members(self) -> None:
        stage, group = self._stage, self._stage.pick_group()
        leader = stage.client.leader(group)
        if leader is None:
            return
        choices = self._choices(group, leader.host.group(group).configuration)
        changes = stage.rng.choice(choices) if choices else []
        for change in changes:
            if change.action is Action.ADD_LEARNER and (change.node, group) not in self._absent:
                stage.nodes[change.node].join(group, self._told(group))
        self._ask(leader, group, changes)

    def leave(self) -> None:
        """The first node found that was removed from a group deletes its log of it."""
        for node in self._stage.nodes.values():
            for group in list(node.groups):
                if node.group(group) is not None and self._is_removed(node.number, group):
                    node.leave(group)
                    return

    def lose_disk(self) -> None:
        if self._absent:
            return
        node = self._stage.rng.choice(list(self._stage.nodes.values()))
        if all(self._is_spared(node.number, group) for group in node.groups):
            self._absent = {(node.number, group) for group in node.lose_disk()}
            self._stage.start_later(node)
            self._mend_later()

    def _is_spared(self, node: int, group: int) -> bool:
        """Whether any configuration that may come into force has a quorum without the node."""
        history = self._stage.invariants.history(group)
        known = [self._told(group)[1], *history.later_configurations()]
        return all(is_quorum(configuration.members - {node}, configuration) for configuration in known)

    def _mend_later(self) -> None:
        self._stage.scheduler.after(MEND_INTERVAL, self._mend, "somebody sees to lost disks")

    def _mend(self) -> None:
        """Have groups let go of a node whose disk was lost. This goes on when the storm is over."""
        for node, group in sorted(self._absent):
            leader = self._stage.client.leader(group)
            if self._is_removed(node, group):
                self._absent.discard((node, group))
            elif leader is not None:
                self._ask(leader, group, [Change(Action.REMOVE, node)])
        if self._absent:
            self._mend_later()

    def _ask(self, leader: SimNode, group: int, changes: list[Change]) -> None:
        """As the server does, only for changes that leave a quorum of nodes which have their disk."""
        if not changes or not leader.alive:
            return
        configuration = leader.host.group(group).configuration
        healthy = {
            node for node in configuration.members | self._stage.nodes.keys() if (node, group) not in self._absent
        }
        if not configuration.joint and quorum_after(configuration, changes, healthy):
            leader.change_members(group, changes, leader.now_ms + 1000, lambda refusal: None)

    def _told(self, group: int) -> tuple[int, Configuration]:
        return self._stage.invariants.history(group).configuration() or (0, self._first)

    def _is_removed(self, node: int, group: int) -> bool:
        """Whether the last committed configuration, and all that may follow it, are without the node."""
        later = self._stage.invariants.history(group).later_configurations()
        return all(node not in known.members for known in (self._told(group)[1], *later))

    def _choices(self, group: int, configuration: Configuration) -> list[list[Change]]:
        """What could be asked for now."""
        rng = self._stage.rng
        voters, learners = configuration.voters, configuration.learners
        strangers = [number for number in self._stage.nodes if number not in configuration.members]
        choices: list[list[Change]] = []
        if strangers:
            choices += [[Change(Action.ADD_LEARNER, rng.choice(strangers))]] * 2
        if learners:  # an exchange of several at once is what joint configurations are for
            incoming = rng.sample(learners, rng.randint(1, len(learners)))
            outgoing = rng.sample(voters, rng.randint(0, len(voters) - 1))
            exchange = [Change(Action.ADD_VOTER, node) for node in incoming]
            exchange += [Change(rng.choice((Action.REMOVE, Action.ADD_LEARNER)), node) for node in outgoing]
            choices += [exchange, exchange, [Change(Action.REMOVE, rng.choice(learners))]]
        if len(voters) > 1:
            choices.append([Change(rng.choice((Action.REMOVE, Action.ADD_LEARNER)), rng.choice(voters))])
        return choices
