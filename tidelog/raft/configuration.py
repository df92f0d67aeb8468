"""Who belongs to a group, and how that may change. Values and pure functions; `membership` keeps their history.

A change of voters goes through a joint configuration, in which both the old (`outgoing`) and the new voters must agree
(Raft thesis 4.3): `enter_joint` leads in, `leave_joint` out. A change of learners alone takes effect in one step,
since learners have no say. There is no third way: single-server changes would be a second proof for the same effect.

Invariants of a Configuration, checked when one is made:

* there is at least one voter, and at most MEMBERS_MAX members;
* no learner is an (incoming) voter. A learner may be an outgoing voter: it is being demoted, and votes until the end;
* members are sorted and unique, so equal configurations have equal bytes.
"""

import struct
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from tidelog.raft.errors import ConfigurationError
from tidelog.raft.quorum import VoteResult, quorum_vote

MEMBERS_MAX = 4_096
"""Config servers' group has every node of the cluster as learner."""

NODE_MAX = 2**31 - 1
"""Node ids are Kafka's broker ids."""

_VERSION = 1
_HEADER = struct.Struct(">BHHH")


@dataclass(frozen=True, slots=True)
class Configuration:
    voters: tuple[int, ...]
    """The voters; while joint, the new ones."""

    outgoing: tuple[int, ...] = ()
    """The voters before the change; empty unless joint."""

    learners: tuple[int, ...] = ()
    """Members that are sent the log and have no vote."""

    def __post_init__(self) -> None:
        if not self.voters:
            raise ConfigurationError("a group must keep at least one voter")
        for members in (self.voters, self.outgoing, self.learners):
            if any(a >= b for a, b in pairwise(members)):
                raise ConfigurationError(f"members must be sorted and unique: {members}")
            if members and not 0 <= members[0] <= members[-1] <= NODE_MAX:
                raise ConfigurationError(f"node ids must be from 0 to {NODE_MAX}: {members}")
        both = sorted(set(self.voters) & set(self.learners))
        if both:
            raise ConfigurationError(f"a node cannot be voter and learner at once: {both}")
        if len(self.members) > MEMBERS_MAX:
            raise ConfigurationError(f"{len(self.members)} members are more than {MEMBERS_MAX}")

    @classmethod
    def of(cls, voters: Iterable[int], learners: Iterable[int] = ()) -> "Configuration":
        """A plain configuration of members in any order."""
        return cls(voters=tuple(sorted(voters)), learners=tuple(sorted(learners)))

    @property
    def joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def members(self) -> frozenset[int]:
        """Everyone who is sent the log."""
        return frozenset((*self.voters, *self.outgoing, *self.learners))

    def votes(self, node: int) -> bool:
        """Whether the node has a vote, and so may lead."""
        return node in self.voters or node in self.outgoing

    def __str__(self) -> str:
        text = "voters=" + _names(self.voters)
        if self.outgoing:
            text += " outgoing=" + _names(self.outgoing)
        if self.learners:
            text += " learners=" + _names(self.learners)
        return text

    def encode(self) -> bytes:
        """A version byte, three counts, then the node ids of voters, outgoing voters and learners; big-endian."""
        nodes = (*self.voters, *self.outgoing, *self.learners)
        header = _HEADER.pack(_VERSION, len(self.voters), len(self.outgoing), len(self.learners))
        return header + struct.pack(f">{len(nodes)}i", *nodes)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> "Configuration":
        if len(data) < _HEADER.size:
            raise ConfigurationError(f"a configuration of {len(data)} bytes is too short")
        version, voters, outgoing, learners = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise ConfigurationError(f"configuration version {version} is unknown; this node reads version {_VERSION}")
        count = voters + outgoing + learners
        if len(data) != _HEADER.size + 4 * count:
            raise ConfigurationError(f"a configuration of {count} nodes cannot have {len(data)} bytes")
        nodes: tuple[int, ...] = struct.unpack_from(f">{count}i", data, _HEADER.size)
        return cls(nodes[:voters], nodes[voters : voters + outgoing], nodes[voters + outgoing :])


class Action(Enum):
    ADD_VOTER = "add voter"
    """Also promotes a learner."""

    ADD_LEARNER = "add learner"
    """Also demotes a voter."""

    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a membership change. Doing again what is already so is no error: a retried request must succeed."""

    action: Action
    node: int


def change(configuration: Configuration, changes: Sequence[Change]) -> Configuration:
    """The configuration to append for these changes: joint if they touch voters, else the new one itself.

    Raises ConfigurationError for a change while one is under way, a node named twice, and an end without voters.
    """
    if configuration.joint:
        raise ConfigurationError(f"a membership change is under way ({configuration}); wait until it ends")
    nodes = [step.node for step in changes]
    if len(set(nodes)) != len(nodes):
        raise ConfigurationError(f"one change names a node twice: {sorted(nodes)}")
    voters, learners = set(configuration.voters), set(configuration.learners)
    for step in changes:
        voters.discard(step.node)
        learners.discard(step.node)
        if step.action is Action.ADD_VOTER:
            voters.add(step.node)
        elif step.action is Action.ADD_LEARNER:
            learners.add(step.node)
    target = Configuration.of(voters, learners)
    return target if target.voters == configuration.voters else enter_joint(configuration, target)


def enter_joint(old: Configuration, new: Configuration) -> Configuration:
    """The configuration between two plain ones, in which both must agree."""
    if old.joint or new.joint:
        raise ConfigurationError(f"a joint configuration leads from a plain one to a plain one: {old} to {new}")
    return Configuration(voters=new.voters, outgoing=old.voters, learners=new.learners)


def leave_joint(configuration: Configuration) -> Configuration:
    """The new configuration alone. Outgoing voters that are neither voters nor learners are members no more."""
    if not configuration.joint:
        raise ConfigurationError(f"not a joint configuration: {configuration}")
    return Configuration(voters=configuration.voters, learners=configuration.learners)


def quorum_after(configuration: Configuration, changes: Sequence[Change], healthy: Set[int]) -> bool:
    """Whether the healthy nodes are a quorum of what these changes lead to, and of the joint configuration on the way.

    Raises ConfigurationError as `change` does.
    """
    target = change(configuration, changes)  # if joint: its incoming half is where it ends
    return quorum_vote(target.voters, target.outgoing, dict.fromkeys(healthy, True)) is VoteResult.WON


def _names(nodes: Iterable[int]) -> str:
    return "(" + " ".join(map(str, nodes)) + ")"
