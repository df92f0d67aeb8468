"""`tidelog backup`: copy streams, as they are, into a folder, while the cluster serves.

Closed segments are copied as files, once: what a finished one holds never changes. What is behind them, up to the high
watermark of the moment, is fetched as any consumer would, and fetched anew by the next backup. A run that was
interrupted goes on where it stopped, within a segment too. `backup_folder` says what the folder looks like.
"""

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidelog.cli import CommandError
from tidelog.cli.client import add_bootstrap, number_from, stream_name
from tidelog.cli.output import StatusLine, show, show_json

if TYPE_CHECKING:
    from tidelog.cli.admin import Admin
    from tidelog.cli.backup_folder import BackupFolder, Manifest

TRIES_MAX = 20  # for one partition: leaders change, segments are removed by retention
TRY_S = 0.5
SLEEP_S_MAX = 1.0
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "backup",
        help="copy streams into a folder while the cluster serves",
        description="May be interrupted, and repeated: what was copied is not copied again. Exit status 1 when a "
        "stream could not be copied; the others are.",
    )
    parser.add_argument("streams", metavar="STREAM", type=stream_name, nargs="*", help="default: all but internal ones")
    parser.add_argument("--to", metavar="DIR", required=True, help="the folder; made when it is not there")
    parser.add_argument(
        "--rate",
        metavar="BYTES/S",
        type=rate,
        default=0,
        help="read no faster; K, M or G may follow (default: no bound)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_bootstrap(parser)


def rate(text: str) -> int:
    unit = UNITS.get(text[-1:].lower(), 1)
    number = text[:-1] if unit > 1 else text
    try:
        return number_from(1)(number) * unit
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes") from None


class Throttle:
    """No more than so many bytes a second, on the whole; 0: no bound. What was not used is not saved up."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()

    @property
    def piece_bytes_max(self) -> int:
        """So much at once that the pauses stay short."""
        from tidelog.wire.messages import READ_SEGMENT_BYTES_MAX

        if not self._bytes_per_s:
            return READ_SEGMENT_BYTES_MAX
        return max(min(READ_SEGMENT_BYTES_MAX, int(self._bytes_per_s * SLEEP_S_MAX)), 4096)

    def took(self, size: int) -> None:
        if self._bytes_per_s:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._bytes_per_s
            time.sleep(max(self._free_at - now, 0))


def run(options: argparse.Namespace) -> int:
    from tidelog.cli.admin import Admin
    from tidelog.cli.backup_folder import BackupFolder

    admin = Admin(options.bootstrap)
    folder = BackupFolder(options.to)
    try:
        folder.create(admin.cluster().cluster_id)
        with folder.locked():
            return _Backup(options, admin, folder).run()
    except OSError as error:  # the disk that is written to
        raise CommandError(f"cannot write to {options.to}: {error.strerror or error}; what is there stays") from None
    finally:
        admin.close()


class _Backup:
    def __init__(self, options: argparse.Namespace, admin: "Admin", folder: "BackupFolder") -> None:
        self._options = options
        self._admin = admin
        self._folder = folder
        self._throttle = Throttle(options.rate)
        self._line = StatusLine(sys.stderr)
        self._bytes = 0
        self._failures: list[str] = []

    def run(self) -> int:
        from tidelog.cli.topics import read_groups, read_topics

        topics = read_topics(self._admin, self._options.streams)
        done: list[dict[str, object]] = []
        try:
            # Before the records: a position must not be behind what the backup holds.
            groups = read_groups(self._admin)
            for topic in topics:
                done.append(self._copy_stream(topic))  # noqa: PERF401 - long work, a step at a time
            self._folder.save("groups.json", {"groups": groups})
        finally:
            self._line.clear()
        if self._options.json:
            show_json({"streams": done, "bytes_read": self._bytes, "failures": self._failures})
        else:
            for each in done:
                show(f"{each['stream']}: {each['partitions']} partitions, {each['records']} records")
            show(f"read {self._bytes} bytes into {self._folder.path}")
        if self._failures:
            raise CommandError("; ".join(self._failures) + ": repeat the command to go on")
        return 0

    def _copy_stream(self, topic: Any) -> dict[str, object]:
        from tidelog.cli.backup_folder import Manifest

        before = self._folder.manifest(topic.name)
        if before is not None and before.topic_id != str(topic.id):
            raise CommandError(
                f"stream {topic.name} was deleted and made anew since it was copied to {self._folder.path}: "
                f"back up into another folder"
            )
        partitions = () if before is None else before.partitions
        manifest = Manifest(topic.name, str(topic.id), _now(), False, topic.configs, partitions)
        complete = True
        for number in range(topic.partitions):
            os.makedirs(self._folder.partition_folder(topic.name, number), exist_ok=True)
            try:
                manifest = self._copy_partition(manifest, number)
            except CommandError as error:
                self._failures.append(f"{topic.name}:{number} was not copied: {error}")
                manifest = self._folder.manifest(topic.name) or manifest
                complete = False
        manifest = Manifest(topic.name, str(topic.id), _now(), complete, topic.configs, manifest.partitions)
        self._folder.save_manifest(manifest)
        records = sum(each.next_offset - each.start_offset for each in manifest.partitions)
        return {"stream": topic.name, "partitions": len(manifest.partitions), "records": records, "complete": complete}

    def _copy_partition(self, manifest: "Manifest", number: int) -> "Manifest":
        """Tries again, at another replica if need be; what was copied is not copied again."""
        from tidelog.cli.admin import Refused
        from tidelog.cli.link import Unreachable
        from tidelog.cli.segments import PartitionCopy
        from tidelog.wire.errors import ErrorCode

        copy = PartitionCopy(self._admin, self._folder, manifest, number, self._read)
        for left in reversed(range(TRIES_MAX)):
            try:
                return copy.run()
            except (Refused, Unreachable) as error:
                gone = isinstance(error, Refused) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not left or gone:
                    raise
            time.sleep(TRY_S)
        raise AssertionError("the last try returns or raises")

    def _read(self, place: str, size: int) -> int:
        """So many bytes were read; gives how many may be read at once."""
        self._bytes += size
        self._line.show(f"{place}: {self._bytes >> 20} MiB read")
        self._throttle.took(size)
        return self._throttle.piece_bytes_max


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
