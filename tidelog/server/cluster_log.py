"""The cluster's state machine over its own log stream: commands in, state out, the same on every node.

`submit` has a command carried out, by this node if it leads the stream, else by the one that does, and answers with
what it did, once it is applied here. Every committed record is applied in order, whoever proposed it. After enough
commands the leader writes a snapshot of the state and moves the log start up to it, so the log stays short; replaying
it gives the same state with or without what is before.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from tidelog import faults
from tidelog.cluster import Applied, Command, Machine, Snapshot, decode_command, encode_command
from tidelog.raft import Reason, Refusal
from tidelog.server.clock import wall_ms
from tidelog.server.replica import Replica
from tidelog.wire.records import Record, build_batch

SNAPSHOT_EVERY = 1_000  # commands
RESULTS_KEPT = 1_024  # of commands applied last, for those who learn late where theirs stands


class CommandRefusedError(Exception):
    """The command was not committed, or it is not known whether it was."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail or refusal.reason.value)
        self.refusal = refusal


Forward = Callable[[Command, int], Awaitable[int]]
"""Has another node carry out a command within so many milliseconds; gives its offset. Raises CommandRefusedError."""


class _Waiting:
    """Somebody who waits for what the command at an offset does."""

    def __init__(self, future: "asyncio.Future[Applied | None]", term: int | None) -> None:
        """`term` is the one in which the command was proposed here; None: it is known to be committed."""
        self.future = future
        self._term = term

    def tell(self, applied: Applied | None, term: int | None) -> None:
        """A command of another term at the same offset is another's: ours was lost with our leadership."""
        if not self.future.done():
            self.future.set_result(applied if self._term in (None, term) else None)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ClusterLog:
    def __init__(self, applied: Callable[[Command, Applied], None], forward: Forward) -> None:
        """`applied` is told of every command, right after it changed the state."""
        self.machine = Machine()
        self._applied = applied
        self._forward = forward
        self._replica: Replica | None = None
        self._offset = 0  # next record to apply
        self._results: dict[int, _Waiting] = {}  # by the offset of the command's record
        self._recent: OrderedDict[int, Applied] = OrderedDict()
        self._commands_since_snapshot = 0
        self._incomplete = False  # earlier commands are missing here: the state begins anew at the next snapshot

    def attach(self, replica: Replica) -> None:
        """Follow the stream, from its start."""
        self._replica = replica
        self._offset = replica.log.start_offset
        self._incomplete = self._offset > 0
        replica.on_commit = self._follow
        self._follow()

    @property
    def offset(self) -> int:
        """Behind the last command that was applied."""
        return self._offset

    @property
    def leads(self) -> bool:
        return self._replica is not None and self._replica.leads

    async def submit(self, command: Command, timeout_ms: int) -> Applied:
        """Raises CommandRefusedError; the command may then still take effect later."""
        if self.leads:
            return (await self.submit_here(command, timeout_ms))[1]
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.result_of(await self._forward(command, timeout_ms))
        except TimeoutError:
            raise CommandRefusedError(Refusal(Reason.TIMED_OUT)) from None

    async def submit_here(self, command: Command, timeout_ms: int) -> tuple[int, Applied]:
        """The command's offset, and what it did. Refused when this node does not lead."""
        replica = self._replica
        if replica is None:
            raise CommandRefusedError(Refusal(Reason.NOT_LEADER))
        batch = build_batch([Record(encode_command(command), timestamp=wall_ms())])
        result = _Waiting(asyncio.get_running_loop().create_future(), replica.group.term)

        def done(refusal: Refusal | None) -> None:
            if refusal is not None:
                self._results.pop(offset, None)
                result.fail(CommandRefusedError(refusal))

        offset = replica.append([batch], 1, None, replica.now() + timeout_ms, done)
        self._results[offset] = result
        applied = await result.future
        if applied is None:
            raise CommandRefusedError(Refusal(Reason.LEADERSHIP_LOST))
        return offset, applied

    async def result_of(self, offset: int) -> Applied:
        """What a committed command did, when it is applied here."""
        applied = await self.until_applied(offset)
        if applied is None:
            detail = "it was carried out, but what it did is no longer known"
            raise CommandRefusedError(Refusal(Reason.LEADERSHIP_LOST, detail=detail))
        return applied

    async def until_applied(self, offset: int) -> Applied | None:
        """None: the command was applied long ago, or came as part of a snapshot."""
        if offset < self._offset:
            return self._recent.get(offset)
        result = self._results.get(offset)
        if result is None:
            result = self._results[offset] = _Waiting(asyncio.get_running_loop().create_future(), None)
        return await asyncio.shield(result.future)

    def _follow(self) -> None:
        replica = self._replica
        assert replica is not None
        before = self._offset
        for record in replica.records(before):
            self._incomplete = self._incomplete or record.offset != self._offset
            self._offset = record.offset + 1
            self._apply(record.offset, record.value or b"")
        if self._offset > before and replica.ready:
            replica.announce()  # other nodes have their part in what was just decided, and clients may wait for that
        if self._commands_since_snapshot >= SNAPSHOT_EVERY and replica.ready:
            self._write_snapshot(replica)

    def _apply(self, offset: int, content: bytes) -> None:
        if faults.ARMED:
            faults.hit("cluster.apply")
        command = decode_command(content)
        if isinstance(command, Snapshot):
            self._incomplete = False
        if self._incomplete:
            return
        applied = self.machine.apply(command)
        self._commands_since_snapshot = 0 if isinstance(command, Snapshot) else self._commands_since_snapshot + 1
        self._applied(command, applied)
        self._recent[offset] = applied
        if len(self._recent) > RESULTS_KEPT:
            self._recent.popitem(last=False)
        waiting = self._results.pop(offset, None)
        if waiting is not None:
            assert self._replica is not None
            waiting.tell(applied, self._replica.log.term_of_offset(offset))
        if isinstance(command, Snapshot):
            self._settle_before(offset)

    def _settle_before(self, offset: int) -> None:
        """A snapshot may have come instead of commands that somebody waits for: they are part of it."""
        for waited in [waited for waited in self._results if waited < offset]:
            self._results.pop(waited).tell(None, None)

    def _write_snapshot(self, replica: Replica) -> None:
        """Both entries in a row: if the first is not committed, the second is not either."""
        offset = replica.log.next_offset
        if offset != replica.high_watermark:
            return  # commands are under way which the snapshot would not know of
        self._commands_since_snapshot = 0
        deadline_ms = replica.now() + 60_000
        batch = build_batch([Record(encode_command(self.machine.snapshot()), timestamp=wall_ms())])
        replica.append([batch], 1, None, deadline_ms, _whatever)
        if faults.ARMED:
            faults.hit("cluster.snapshot")
        replica.move_start(offset, deadline_ms, _whatever)


def _whatever(_refusal: Refusal | None) -> None:
    """If it was not committed, the next one will be."""
