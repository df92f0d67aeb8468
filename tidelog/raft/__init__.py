"""Consensus on a log, as a pure state machine: no sockets, clocks, files or threads.

A `Group` is one replicated log on one node; a `Host` carries all groups of a node. Both take events and give effects.
Whoever owns one drives it like this, in one turn of its loop after another:

    for envelope in arrived:
        host.receive(envelope, now_ms)
    ticket = host.propose(group, EntryKind.DATA, batches, deadline_ms, now_ms)     # or a Refusal, at once

    work = host.poll(now_ms)                   # fires what is due, collects what there is to do
    for envelope in work.envelopes:
        transport.send(envelope)               # may be lost, repeated, reordered
    for group, effects in work.groups:
        effects.hard_state                     # write it, sync it, then host.hard_state_written(group, it, now_ms)
        effects.answers                        # Committed, Readable or Refused; each ticket gets one
        effects.commit, effects.leadership, effects.configuration
    sleep until host.next_deadline_ms(), or something arrives

The log (`Log`, which the owner implements) is written behind the core's back: whenever its `durable_index` has moved,
say `host.written(group, now_ms)`. On start, hand each group what was last made durable: its hard state, the
configuration in force where its log begins, and those found in the log. Delete from a log's front only what is
committed.

A `Group` alone is driven in the same way: events are methods with the time as last argument, `take_effects` gives what
there is to do, `next_deadline_ms` says when to `tick`.
"""

from tidelog.raft.configuration import Action, Change, Configuration, quorum_after
from tidelog.raft.effects import (
    FOUNDED,
    Answer,
    Committed,
    Effects,
    HardState,
    Leadership,
    MemberView,
    Readable,
    Reason,
    Refusal,
    Refused,
    Role,
)
from tidelog.raft.errors import ConfigurationError, RaftError, RaftInvariantError
from tidelog.raft.group import Group
from tidelog.raft.host import Host, Work
from tidelog.raft.log import Buffer, Entry, EntryKind, Log
from tidelog.raft.messages import (
    AppendRejected,
    AppendRequest,
    AppendResponse,
    Envelope,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TakeOver,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tidelog.raft.settings import TERM_MAX, RaftSettings

__all__ = [
    "FOUNDED",
    "TERM_MAX",
    "Action",
    "Answer",
    "AppendRejected",
    "AppendRequest",
    "AppendResponse",
    "Buffer",
    "Change",
    "Committed",
    "Configuration",
    "ConfigurationError",
    "Effects",
    "Entry",
    "EntryKind",
    "Envelope",
    "Group",
    "HardState",
    "Heartbeat",
    "HeartbeatResponse",
    "Host",
    "Leadership",
    "Log",
    "MemberView",
    "Message",
    "RaftError",
    "RaftInvariantError",
    "RaftSettings",
    "Readable",
    "Reason",
    "Refusal",
    "Refused",
    "Role",
    "TakeOver",
    "TimeoutNow",
    "VoteRequest",
    "VoteResponse",
    "Work",
    "quorum_after",
]
