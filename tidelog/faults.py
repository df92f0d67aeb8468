"""Fault points: named places in the code where a test can make something go wrong.

    if faults.ARMED:
        faults.hit("disk.sync")

Off, which is always so unless the process was started with `TIDELOG_FAULTS` in its environment, a point costs one look
at a global. `TIDELOG_FAULTS` says what goes wrong from the start on, and may be empty: points can be set later, by the
admin method `fault` (see `command`), or directly by tests in the same process (`arm`).

    TIDELOG_FAULTS="disk.sync=delay:200,count:5;segment.between-data-and-rows=crash,skip:3"

What can go wrong: `delay:MS` (the thread sleeps: on the event loop the whole node does), `error:ERRNO` (OSError, by
name or number), `crash` (the process ends as by kill -9), `hang` (until `release`d), `drop` (the point answers true and
the code leaves out what it was about to do). The first `skip` hits do nothing, then `count` hits do it (0: all).

Every point is in `POINTS`; tests/e2e/faults/test_points.py checks that each is really in the code.
"""

import errno
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ENVIRONMENT = "TIDELOG_FAULTS"
CRASH_STATUS = 137  # what a shell reports for kill -9
HANG_S_MAX = 600.0  # a test that forgets to release must not leave a process for ever

ARMED = ENVIRONMENT in os.environ

POINTS: Mapping[str, str] = {
    # The disk as a whole: slow, failing, full.
    "disk.write": "before a file is written; error:ENOSPC is a full disk, error:EIO a broken one",
    "disk.sync": "before a file is synced; an error here must end the node",
    "disk.read": "before a file is read; slow reads must not hold up other streams",
    "disk.rename": "before a file is renamed into place",
    "disk.sync-directory": "before a folder's names are synced",
    # One group of writes.
    "writer.before-write": "a group was taken from the queue and nothing of it is written",
    "writer.before-sync": "a group is written and not synced",
    "writer.after-sync": "a group is durable and nobody has been told",
    # The short way to the disk, which appends take in a process with fault points only while one of these is armed.
    "lane.submit": "a run is laid out and not given to the kernel",
    "lane.between-data-and-rows": "drop: the kernel gets a turn's batches, not their index rows, then the process ends",
    "lane.collect": "the kernel has done writes and nobody has been told; error: as if it had reported that",
    # One segment.
    "segment.between-data-and-rows": "a run's batches are written, their index rows are not",
    "segment.torn-data": "drop: of a run's batches only the first half is written, then the process ends",
    "segment.torn-row": "drop: the last index row is cut short by 10 bytes, then the process ends",
    "segment.begin": "a new segment's file is about to be made; the one before is complete",
    "segment.close": "a segment's index is in place, its log has not got its name yet",
    "segment.wipe-rows": "a truncation took the settled mark back and has not wiped the rows",
    "segment.drop-suffix": "a truncation has removed some of its segments",
    # Votes and the stream's state.
    "votes.before-write": "a vote is decided and not on disk; crash: it must never have been sent",
    "votes.after-sync": "a vote is durable and was not sent",
    "state.before-replace": "a stream's state (log start, configuration, applied index) is about to be replaced",
    "state.after-replace": "it is replaced, and what it no longer names is not removed yet",
    # The log as Raft and readers see it.
    "log.append": "entries are about to be appended",
    "log.term": "somebody asks for the term of an entry",
    "log.entries": "entries are read for a follower that lags; slow: longer than an election takes",
    "log.read": "records are read for a consumer",
    "log.trim": "the log start is about to move",
    # What is made of committed entries.
    "replica.apply": "committed entries are about to be applied; hang: apply is stuck",
    "replica.ready": "drop: the entry that begins a term counts as not applied, so the leader answers nothing",
    "replica.save": "drop: the applied index is not saved",
    "cluster.apply": "a command of group 0 is about to be applied",
    "cluster.snapshot": "group 0 has its snapshot record, and its log start has not moved",
    # Membership.
    "members.before-change": "a change of a stream's members was asked for and is not proposed yet",
    "members.after-change": "a change of a stream's members is committed, the controller does not know yet",
    "members.begin": "a newcomer is about to begin a stream, blank",
    # Between nodes.
    "peers.send": "an envelope is about to be sent; drop: it is lost",
    "peers.receive": "an envelope has arrived; drop: it is lost",
    "peers.call": "a call to another node is about to be sent",
    "fill.piece": "a newcomer has a piece of a segment and asks for the next",
    "fill.open": "a newcomer has all segments and has not opened the log from them",
    # Clients.
    "fetch.read": "a reader's thread is about to read what a consumer asked for",
    "produce.answer": "a produce is committed and its answer is about to leave; drop: the client never hears of it",
    # Storage tiers.
    "tier.copy.started": "a copy is known as begun, and nothing of it is in the store",
    "tier.copy.log-put": "a segment's batches are in the store, its index is not",
    "tier.copy.indexes-put": "a segment is whole in the store, and not known as finished",
    "tier.copy.finished": "a segment is finished, the manifest does not name it",
    "tier.delete.started": "a segment is not readable any more, and its objects are there",
    "tier.delete.indexes-gone": "a segment's index is removed from the store, its batches are not",
    "tier.delete.objects-gone": "a segment's objects are removed, and it is not forgotten",
    "tier.manifest": "a stream's manifest is about to be put into the store",
    "tier.topic.marked": "a deleted topic's manifests say that it is, and all its objects are there",
    "tier.topic.emptied": "a deleted topic's objects are removed, its manifests are there",
    "tier.mirror.manifest-read": "an attached stream's leader has read its owner's manifest and written nothing down",
    "tier.mirror.recorded": "some of what the manifest says is in the log, perhaps more is to come",
    "tier.fetch": "a piece of a remote segment is about to be fetched",
    # The receiver of a PikiwiDB source.
    "pikiwi.received": "a message with binlog items has arrived and nothing of it is written",
    "pikiwi.before-append": "messages were taken for the WAL and nothing of them is written",
    "pikiwi.before-sync": "messages are appended to the WAL and not synced",
    "pikiwi.after-sync": "messages are durable in the WAL and the master was not told",
    "pikiwi.before-acknowledge": "an acknowledgement is about to be sent; drop: it is not",
    "pikiwi.before-checkpoint": "the receiver is about to replace its checkpoint",
    "pikiwi.after-reset": "a WAL begins at a new position and the checkpoint does not know it",
    "pikiwi.dump-complete": "all files of a dump are here and the checkpoint does not say so",
    # A region of the region WAL (tidelog/regionwal), in the process of the database.
    "regionwal.open.before-meta-epoch": "an opener has read the meta topic and not written its epoch there",
    "regionwal.open.after-meta-epoch": "its epoch is in the meta topic, and not yet in the data topic",
    "regionwal.open.before-data-epoch": "recovery has read the data topic and not written its epoch record",
    "regionwal.open.after-data-epoch": "the epoch record is written, what lies before it is not read",
    "regionwal.open.recovered": "a region is recovered and owned, nobody has used it",
    "regionwal.write.before-produce": "a write has its sequence numbers, nothing of it is with the client",
    "regionwal.write.after-produce": "all of a write is with the client, perhaps under way",
    "regionwal.write.delivered": "a write is durable, its caller does not know; drop: the report is lost",
    "regionwal.write.resolve": "writes are in doubt and the log has not been asked; error: it cannot be",
    "regionwal.mark.before": "a mark was asked for and is not made",
    "regionwal.mark.after": "a mark is made, and in no snapshot",
    "regionwal.snapshot.before-produce": "a snapshot is taken and not written",
    "regionwal.snapshot.after-produce": "it is written, and not known to count",
    "regionwal.snapshot.before-trim": "it counts, the ones before it are still there",
    "regionwal.snapshot.after-trim": "it is the only one",
    "regionwal.clean.before-delete": "a cleaning has its snapshot and has deleted nothing",
    "regionwal.clean.after-delete": "the log's beginning is deleted",
    "regionwal.close.before-snapshot": "a region is being closed and its last snapshot is not taken",
}


class FaultError(ValueError):
    """There is no such point, or no such thing can happen there."""


Kind = Literal["delay", "error", "crash", "hang", "drop"]


@dataclass(frozen=True, slots=True)
class Action:
    kind: Kind
    delay_ms: int = 0
    code: int = errno.EIO
    skip: int = 0  # hits that pass unharmed first
    count: int = 0  # hits after them that do not; 0: all


_actions: dict[str, Action] = {}
_hits: dict[str, int] = {}  # since the point was armed
_releases: dict[str, threading.Event] = {}
_lock = threading.Lock()


def hit(name: str) -> bool:
    """Do what is armed at the point; true when the caller shall leave out what it was about to do."""
    with _lock:
        _hits[name] = number = _hits.get(name, 0) + 1
        action = _actions.get(name)
        release = _releases.get(name)
    if action is None or number <= action.skip or 0 < action.count < number - action.skip:
        return False
    match action.kind:
        case "delay":
            time.sleep(action.delay_ms / 1000)
        case "error":
            raise OSError(action.code, f"{os.strerror(action.code)} (fault point {name})")
        case "crash":
            os._exit(CRASH_STATUS)
        case "hang":
            assert release is not None
            release.wait(HANG_S_MAX)
        case "drop":
            return True
    return False


def crash() -> None:
    """For points that do half of something: the process ends here, as by kill -9."""
    os._exit(CRASH_STATUS)


def arm(name: str, action: Action) -> None:
    """From now on; hits so far are forgotten. In a process that was not started for it, this arms all points."""
    global ARMED  # noqa: PLW0603 - the one switch all points look at
    if name not in POINTS:
        raise FaultError(f"there is no fault point {name!r}")
    with _lock:
        _let_go(name)
        _actions[name] = action
        _hits[name] = 0
        if action.kind == "hang":
            _releases[name] = threading.Event()
    ARMED = True


def disarm(name: str) -> None:
    """Nothing happens there any more; whoever hangs there goes on."""
    with _lock:
        _let_go(name)
        _actions.pop(name, None)


def clear() -> None:
    """As after the start: nothing goes wrong, and all points are off unless the environment says otherwise."""
    global ARMED  # noqa: PLW0603
    for name in list(_actions):
        disarm(name)
    with _lock:
        _hits.clear()
    ARMED = ENVIRONMENT in os.environ


def armed(prefix: str) -> bool:
    """Whether something goes wrong at one of the points that begin so."""
    with _lock:
        return any(name.startswith(prefix) for name in _actions)


def hits() -> dict[str, int]:
    """How often each point was passed, since it was armed or the process started."""
    with _lock:
        return dict(_hits)


def _let_go(name: str) -> None:
    release = _releases.pop(name, None)
    if release is not None:
        release.set()


# --- as text ---------------------------------------------------------------------------------------------------------


def parse_action(text: str) -> Action:
    """`delay:200,skip:3,count:1` and the like."""
    kind, *options = (part.strip() for part in text.split(","))
    name, _, value = kind.partition(":")
    fields: dict[str, Any] = {}
    match name:
        case "delay":
            fields["delay_ms"] = _number(value)
        case "error":
            fields["code"] = _code(value)
        case "crash" | "hang" | "drop":
            pass
        case _:
            raise FaultError(f"{name!r} is none of delay:MS, error:ERRNO, crash, hang, drop")
    for option in options:
        key, _, number = option.partition(":")
        if key not in ("skip", "count"):
            raise FaultError(f"{key!r} is neither skip:N nor count:N")
        fields[key] = _number(number)
    return Action(name, **fields)  # type: ignore[arg-type]


def _number(text: str) -> int:
    if not text.isdecimal():
        raise FaultError(f"{text!r} is no whole number")
    return int(text)


def _code(text: str) -> int:
    if text.isdecimal():
        return int(text)
    code = getattr(errno, text or "EIO", None)
    if not isinstance(code, int):
        raise FaultError(f"{text!r} is no errno")
    return code


def arm_all(text: str) -> None:
    """From `point=action;point=action`, as in the environment."""
    for part in filter(None, (item.strip() for item in text.split(";"))):
        name, _, action = part.partition("=")
        arm(name.strip(), parse_action(action))


def command(content: Mapping[str, Any]) -> dict[str, Any]:
    """The admin method `fault`: {"point", "action"} arms, {"point"} disarms, {"clear": true} disarms all.

    The answer is what is armed, and how often each point was passed.
    """
    if ENVIRONMENT not in os.environ:
        raise FaultError(f"fault points are off: the node was started without {ENVIRONMENT} in its environment")
    if content.get("clear"):
        clear()
    elif "action" in content:
        arm(str(content.get("point")), parse_action(str(content["action"])))
    elif "point" in content:
        disarm(str(content["point"]))
    with _lock:
        armed = {name: action.kind for name, action in _actions.items()}
        return {"armed": armed, "hits": dict(_hits)}


if ARMED:
    arm_all(os.environ[ENVIRONMENT])
