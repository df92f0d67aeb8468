"""What the controller is told to do, and what it must tell: the values between it and `planner` and `balancing`."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.cluster.commands import Command


@dataclass(frozen=True, slots=True)
class Health:
    """Which nodes answer. One that is in neither has not been watched long enough to say."""

    alive: Mapping[int, int]
    """Node: since when, in ms."""
    dead: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Submit:
    command: Command


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """Ask the stream's leader to change its group, all in one step.

    It refuses what would endanger the quorum, and to promote a learner that has not caught up.
    """

    stream: int
    add_learners: tuple[int, ...] = ()
    """A voter among them keeps following, without a vote."""
    promote: tuple[int, ...] = ()
    remove: tuple[int, ...] = ()
    force: bool = False
    """An operator accepts that no live majority is left."""


@dataclass(frozen=True, slots=True)
class TransferLeader:
    stream: int
    target: int


Action = Submit | ChangeMembers | TransferLeader
