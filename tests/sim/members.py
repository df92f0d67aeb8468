"""Who joins and leaves a group, while everything else goes on.

A change is asked of a leader like any other request; nothing here forces one. A node leaves a group (and deletes its
log) only when its removal is committed, and never returns to it: a replica that forgot its votes must not vote again
under the same name.
"""

from tidelog.raft import Action, Change, Configuration

from .stage import Stage


class Members:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._first = Configuration.of(range(1, stage.mix.voters + 1))
        self._left: set[tuple[int, int]] = set()  # (node, group) that must not meet again

    def change_members(self) -> None:
        stage, group = self._stage, self._stage.pick_group()
        leader = stage.client.leader(group)
        if leader is None:
            return
        choices = self._choices(group, leader.host.group(group).configuration)
        changes = stage.rng.choice(choices) if choices else []
        for change in changes:
            if change.action is not Action.REMOVE:
                stage.nodes[change.node].join(group, self._first)
        if changes and leader.alive:
            leader.change_members(group, changes, leader.now_ms + 1000, lambda answer: None)

    def leave(self) -> None:
        """The first node found that was removed from a group deletes its log of it."""
        for node in self._stage.nodes.values():
            for group in list(node.groups):
                if node.group(group) is not None and self._is_removed(node.number, group):
                    node.leave(group)
                    self._left.add((node.number, group))
                    return

    def _is_removed(self, node: int, group: int) -> bool:
        """Whether the last committed configuration, and all that may follow it, are without the node."""
        configurations = [Configuration.decode(data) for data in self._stage.invariants.history(group).configurations()]
        return bool(configurations) and all(node not in known.members for known in configurations)

    def _choices(self, group: int, configuration: Configuration) -> list[list[Change]]:
        """What could be asked for now."""
        rng = self._stage.rng
        voters, learners = configuration.voters, configuration.learners
        strangers = [
            number
            for number in self._stage.nodes
            if number not in configuration.members and (number, group) not in self._left
        ]
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
        return choices
