"""`tidelog verify`: is everything that is there what it should be?

    --dir DATA      a stopped node's folder, or each of its folders: every checksum, every index
    --backup DIR    a backup: every batch, every file, nothing missing
    neither         a running cluster: the replicas of every stream hold the same bytes at the same offsets

Replicas are compared by a checksum that each node rolls over its own batches, for ranges that are the same on all of
them and small enough that nobody waits long.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidelog.cli import CommandError
from tidelog.cli.client import add_bootstrap, stream_name
from tidelog.cli.output import StatusLine, show, show_json

if TYPE_CHECKING:
    from tidelog.cli.admin import Admin, PartitionRow

STEP_BYTES = 8 << 20  # that one question should make a node read
STEP_OFFSETS_MIN, STEP_OFFSETS_MAX = 64, 1 << 20
CHECKSUM_S_MAX = 60.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "verify",
        help="check every checksum of a node's folder, a backup, or a running cluster",
        description="Without --dir and --backup: compares the replicas of a running cluster. Exit status 1 when "
        "anything differs, is damaged, or could not be looked at.",
    )
    parser.add_argument(
        "streams", metavar="STREAM", type=stream_name, nargs="*", help="default: all; with --dir, by number"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--dir",
        metavar="DATA",
        action="append",
        help="the data folder of a node that does not run; once for each, in the order of its log.dirs",
    )
    where.add_argument("--backup", metavar="DIR", help="the folder of a backup")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_bootstrap(parser)


def run(options: argparse.Namespace) -> int:
    line = StatusLine(sys.stderr)
    try:
        if options.dir is not None:
            summary, problems = _verify_folders(options.dir, options.streams, line)
        elif options.backup is not None:
            summary, problems = _verify_backup(options.backup, options.streams, line)
        else:
            summary, problems = _verify_cluster(options.bootstrap, options.streams, line)
    finally:
        line.clear()
    if options.json:
        show_json({**summary, "problems": problems})
    else:
        for problem in problems:
            show(problem)
        show(", ".join(f"{name}: {count}" for name, count in summary.items()))
        show(f"{len(problems)} problems" if problems else "all in order")
    return 1 if problems else 0


# --- a stopped node's folders -----------------------------------------------------------------------------------------


def _verify_folders(paths: Sequence[str], streams: Sequence[str], line: StatusLine) -> tuple[dict[str, int], list[str]]:
    from tidelog.storage import RealDisk, StorageError, verify_directories

    if not all(name.isdecimal() for name in streams):
        raise CommandError("with --dir, name streams by their numbers, as their folders in DATA/streams have them")
    wanted = frozenset(map(int, streams)) or None
    named = ", ".join(paths)
    found: set[int] = set()
    problems: list[str] = []
    entries = size = pending = 0
    try:
        for report in verify_directories(RealDisk(), paths, streams=wanted):
            problems.extend(report.problems)
            pending += len(report.pending)
            entries += report.entries
            size += report.length
            if report.stream is not None:
                found.add(report.stream)
                line.show(f"stream {report.stream}: {size >> 20} MiB checked")
    except (StorageError, OSError) as error:
        raise CommandError(f"{named} cannot be checked: {error}") from None
    problems.extend(f"there is no stream {stream} in {named}" for stream in sorted((wanted or frozenset()) - found))
    return {"streams": len(found), "entries": entries, "bytes": size, "pending": pending}, problems


# --- a backup ---------------------------------------------------------------------------------------------------------


def _verify_backup(path: str, streams: Sequence[str], line: StatusLine) -> tuple[dict[str, int], list[str]]:
    from tidelog.cli.backup_folder import BackupDamaged, BackupFolder, check_partition

    folder = BackupFolder(path)
    folder.open()
    names = list(streams) or folder.streams()
    partitions = size = 0
    problems: list[str] = []
    for name in names:
        try:
            manifest = folder.manifest(name)
        except BackupDamaged as error:
            problems.append(str(error))
            continue
        if manifest is None:
            raise CommandError(f"the backup has no stream {name}: it has {', '.join(folder.streams()) or 'none'}")
        if not manifest.complete:
            problems.append(f"the backup of stream {name} is not complete: repeat `tidelog backup`")
        for held in manifest.partitions:
            partitions += 1
            try:
                for checked in check_partition(folder, name, held):
                    size += checked
                    line.show(f"{name}:{held.partition}: {size >> 20} MiB checked")
            except BackupDamaged as error:
                problems.append(str(error))
    return {"streams": len(names), "partitions": partitions, "bytes": size}, problems


# --- a running cluster ------------------------------------------------------------------------------------------------


def _verify_cluster(bootstrap: str, streams: Sequence[str], line: StatusLine) -> tuple[dict[str, int], list[str]]:
    from tidelog.cli.admin import Admin

    admin = Admin(bootstrap)
    try:
        rows = [row for name in streams for row in admin.partitions(name)] if streams else admin.partitions()
        for name in streams:
            if not any(row.topic == name for row in rows):
                raise CommandError(f"there is no stream {name}: see `tidelog stream list`")
        size = 0
        problems: list[str] = []
        for row in rows:
            size += Comparison(admin, row, problems, line).run()
        return {"partitions": len(rows), "bytes": size}, problems
    finally:
        admin.close()


class Comparison:
    """The replicas of one partition, over what all of them have."""

    def __init__(self, admin: "Admin", row: "PartitionRow", problems: list[str], line: StatusLine) -> None:
        self._admin = admin
        self._row = row
        self._problems = problems
        self._line = line

    def run(self) -> int:
        """Bytes compared, counted once for all replicas."""
        bounds = self._common(self._row.replicas)
        size, step = 0, STEP_OFFSETS_MIN
        while bounds is not None:
            nodes, offset, end = bounds
            if offset >= end:
                break
            self._line.show(f"{self._row.name}: {offset} of {end}")
            answers, moved = self._checksums(nodes, offset, min(offset + step, end))
            if moved:  # removed meanwhile, by retention or a trim
                bounds = self._common(nodes)
                if bounds is not None and bounds[1] <= offset:
                    self._problems.append(f"{self._row.name}: offset {offset} is said to be there, and cannot be read")
                    break
                continue
            if not answers:
                break
            first = next(iter(answers.values()))
            if any(_content(answer) != _content(first) for answer in answers.values()):
                self._differ(answers)
            size += first["bytes"]
            step = _next_step(step, first["bytes"])
            bounds = list(answers), max(first["end"], offset + 1), end
        return size

    def _common(self, nodes: Sequence[int]) -> tuple[list[int], int, int] | None:
        """The nodes that answer, and what all of them have."""
        held = {node: found for node in nodes if (found := self._bounds(node)) is not None}
        if not held:
            return None
        return list(held), max(start for start, _ in held.values()), min(end for _, end in held.values())

    def _bounds(self, node: int) -> tuple[int, int] | None:
        from tidelog.cli.admin import Refused
        from tidelog.cli.link import Unreachable

        try:
            found = self._admin.call_node(node, "segments", topic=self._row.topic, partition=self._row.partition)
        except (Refused, Unreachable) as error:
            self._problems.append(f"{self._row.name}: node {node} could not be asked: {error}")
            return None
        return found["start_offset"], found["high_watermark"]

    def _checksums(self, nodes: Sequence[int], start: int, end: int) -> tuple[dict[int, Any], bool]:
        """What each node has in the range, and whether one has removed its beginning. A node that cannot say is left
        out from here on."""
        from tidelog.cli.admin import Refused
        from tidelog.cli.link import Unreachable
        from tidelog.wire.errors import ErrorCode

        answers: dict[int, Any] = {}
        for node in nodes:
            try:
                answers[node] = self._admin.call_node(
                    node,
                    "checksum",
                    CHECKSUM_S_MAX,
                    topic=self._row.topic,
                    partition=self._row.partition,
                    start=start,
                    end=end,
                )
            except (Refused, Unreachable) as error:
                if isinstance(error, Refused) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    return {}, True
                self._problems.append(f"{self._row.name}: node {node} at {start}: {error}")
        return answers, False

    def _differ(self, answers: dict[int, Any]) -> None:
        said = "; ".join(
            f"node {node} has {answer['batches']} batches, {answer['bytes']} bytes, checksum {answer['crc']}"
            for node, answer in answers.items()
        )
        bounds = next(iter(answers.values()))
        self._problems.append(f"{self._row.name} differs in [{bounds['start']}, {bounds['end']}): {said}")


def _content(answer: Any) -> tuple[Any, ...]:
    return answer["end"], answer["crc"], answer["batches"], answer["bytes"]


def _next_step(step: int, size: int) -> int:
    """Offsets to ask for next, when `step` of them had `size` bytes."""
    wanted = step * 4 if size == 0 else min(step * STEP_BYTES // size, step * 4)
    return max(STEP_OFFSETS_MIN, min(wanted, STEP_OFFSETS_MAX))
