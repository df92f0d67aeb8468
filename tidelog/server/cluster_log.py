"""The cluster's state machine over its own log stream: commands in, state out, the same on every node.

`submit` proposes a command and answers with what it did, once it is committed and applied here. Every committed record
is applied in order, whoever proposed it. After enough commands the leader writes a snapshot of the state and moves the
log start up to it, so the log stays short; replaying it gives the same state with or without what is before.
"""

import asyncio
from collections.abc import Callable

from tidelog.cluster import Applied, Command, Machine, Snapshot, decode_command, encode_command
from tidelog.raft import Refusal
from tidelog.server.clock import wall_ms
from tidelog.server.replica import Replica
from tidelog.wire.records import Record, build_batch

SNAPSHOT_EVERY = 1_000  # commands


class CommandRefusedError(Exception):
    """The command was not committed, or it is not known whether it was."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason.value)
        self.refusal = refusal


class ClusterLog:
    def __init__(self, replica: Replica, applied: Callable[[Command, Applied], None]) -> None:
        """`applied` is told of every command, right after it changed the state."""
        self.machine = Machine()
        self._replica = replica
        self._applied = applied
        self._offset = replica.log.start_offset  # next record to apply
        self._results: dict[int, asyncio.Future[Applied]] = {}  # by the offset of the command's record
        self._commands_since_snapshot = 0
        replica.on_commit = self._follow

    async def submit(self, command: Command, timeout_ms: int) -> Applied:
        """Raises CommandRefusedError; the command may then still take effect later."""
        replica = self._replica
        batch = build_batch([Record(encode_command(command), timestamp=wall_ms())])
        result: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()

        def done(refusal: Refusal | None) -> None:
            if refusal is not None:
                self._results.pop(offset, None)
                if not result.done():
                    result.set_exception(CommandRefusedError(refusal))

        offset = replica.append([batch], 1, None, replica.now() + timeout_ms, done)
        self._results[offset] = result
        return await result

    def _follow(self) -> None:
        replica = self._replica
        for record in replica.records(self._offset):
            self._offset = record.offset + 1
            self._apply(record.offset, record.value or b"")
        if self._commands_since_snapshot >= SNAPSHOT_EVERY and replica.ready:
            self._write_snapshot()

    def _apply(self, offset: int, content: bytes) -> None:
        command = decode_command(content)
        applied = self.machine.apply(command)
        self._commands_since_snapshot = 0 if isinstance(command, Snapshot) else self._commands_since_snapshot + 1
        self._applied(command, applied)
        waiting = self._results.pop(offset, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(applied)

    def _write_snapshot(self) -> None:
        """Both entries in a row: if the first is not committed, the second is not either."""
        replica = self._replica
        offset = replica.log.next_offset
        if offset != replica.high_watermark:
            return  # commands are under way which the snapshot would not know of
        self._commands_since_snapshot = 0
        deadline_ms = replica.now() + 60_000
        batch = build_batch([Record(encode_command(self.machine.snapshot()), timestamp=wall_ms())])
        replica.append([batch], 1, None, deadline_ms, _whatever)
        replica.move_start(offset, deadline_ms, _whatever)


def _whatever(_refusal: Refusal | None) -> None:
    """If it was not committed, the next one will be."""
