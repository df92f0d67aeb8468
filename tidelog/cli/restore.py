"""`tidelog restore`: make streams of what a backup holds, every record at the offset it had.

A stream is made so that it begins where the backup begins, and gets the batches one after the other as they are; each
answer must give the offset that the batch had. So an interrupted restore goes on where the stream ends. Producer ids
are taken out: they belong to producers of another time, and would have batches refused, or taken for repeated ones.

While a stream is filled, the settings that would change or refuse what comes (`HELD_BACK`) are out of the way. At the
end it gets its own, except for retention: old records would be gone within the minute. `--retention` sets it too.
"""

import argparse
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

from tidelog.cli import CommandError
from tidelog.cli.client import ANSWER_S_MAX, add_bootstrap, stream_name
from tidelog.cli.output import StatusLine, show, show_json

if TYPE_CHECKING:
    from tidelog.cli.admin import Admin
    from tidelog.cli.backup_folder import BackupFolder, Manifest, PartitionBackup
    from tidelog.wire.batch import BatchHeader

RETENTION = {"retention.ms": "-1", "retention.bytes": "-1"}
HELD_BACK = {**RETENTION, "message.timestamp.type": "CreateTime", "max.message.bytes": str(64 << 20)}
WINDOW = 8  # batches on their way; the next is refused when one of them fails, so the order is safe
TRIES_MAX = 60
TRY_S = 1.0  # long enough for what was on its way to be committed or gone

_PRODUCER = struct.Struct(">qhi")  # producer id, epoch, base sequence, from byte 43 on
_PRODUCER_AT = 43


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "restore",
        help="make streams of a backup",
        description="May be interrupted, and repeated: it goes on where the stream ends.",
    )
    parser.add_argument("streams", metavar="STREAM[=NEWNAME]", type=_renamed, nargs="*", help="default: all")
    parser.add_argument("--from", dest="source", metavar="DIR", required=True, help="the backup's folder")
    parser.add_argument("--groups", action="store_true", help="set consumer groups' positions, too")
    parser.add_argument(
        "--retention", action="store_true", help="set retention as it was; the default keeps what is restored for ever"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_bootstrap(parser)


def _renamed(text: str) -> tuple[str, str]:
    name, equals, new = text.partition("=")
    return stream_name(name), stream_name(new) if equals else name


def run(options: argparse.Namespace) -> int:
    from tidelog.cli.admin import Admin
    from tidelog.cli.backup_folder import BackupFolder

    folder = BackupFolder(options.source)
    folder.open()
    wanted: list[tuple[str, str]] = options.streams or [(name, name) for name in folder.streams()]
    manifests: list[tuple[Manifest, str]] = []
    for name, new in wanted:
        manifest = folder.manifest(name)
        if manifest is None:
            raise CommandError(f"the backup has no stream {name}: it has {', '.join(folder.streams()) or 'none'}")
        manifests.append((manifest, new))
    admin = Admin(options.bootstrap)
    line = StatusLine(sys.stderr)
    done: list[dict[str, object]] = []
    try:
        for manifest, new in manifests:
            records = _Restore(admin, folder, manifest, new, line).run(options.retention)
            done.append({"stream": manifest.stream, "restored": new, "records": records})
        if options.groups:
            _restore_groups(admin, folder, {manifest.stream: new for manifest, new in manifests})
    finally:
        line.clear()
        admin.close()
    if options.json:
        show_json({"streams": done})
        return 0
    for each in done:
        show(f"restored {each['restored']}: {each['records']} records were written")
    if not options.retention and done:
        show("retention is off for them: set it with `tidelog stream alter NAME --unset retention.ms …` when you like")
    return 0


def _restore_groups(admin: "Admin", folder: "BackupFolder", names: dict[str, str]) -> None:
    from tidelog.cli.topics import commit_positions

    for group, streams in ((folder.load("groups.json") or {}).get("groups", {})).items():
        for stream, offsets in streams.items():
            if stream in names:
                commit_positions(admin, group, names[stream], {int(number): at for number, at in offsets.items()})


class _Restore:
    """One stream."""

    def __init__(
        self, admin: "Admin", folder: "BackupFolder", manifest: "Manifest", name: str, line: StatusLine
    ) -> None:
        self._admin = admin
        self._folder = folder
        self._manifest = manifest
        self._name = name
        self._line = line

    def run(self, retention: bool) -> int:
        """How many records were written."""
        partitions = self._manifest.partitions
        if [each.partition for each in partitions] != list(range(len(partitions))) or not self._manifest.complete:
            raise CommandError(
                f"the backup of stream {self._manifest.stream} is not complete: repeat `tidelog backup` first"
            )
        firsts = [self._first(each) for each in partitions]
        self._create(firsts)
        written = sum(self._fill(each, first) for each, first in zip(partitions, firsts, strict=True))
        for each, first in zip(partitions, firsts, strict=True):
            if first < each.start_offset:
                self._trim(each)
        self._set_configs(retention)
        return written

    def _first(self, held: "PartitionBackup") -> int:
        """Where the restored log begins: at the batch that holds the start offset."""
        for header, _ in self._folder.batches(self._manifest.stream, held, held.start_offset):
            return header.base_offset
        return held.next_offset

    def _create(self, firsts: list[int]) -> None:
        from tidelog.cli.admin import Refused
        from tidelog.wire.errors import ErrorCode

        configs = {**self._manifest.configs, **HELD_BACK}
        try:
            self._admin.change("create-restored", topic=self._name, configs=configs, start_offsets=firsts)
        except Refused as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            there = len(self._admin.partitions(self._name))
            if there != len(firsts):
                raise CommandError(
                    f"stream {self._name} exists and has {there} partitions: {_elsewhere(self._name)}"
                ) from None

    # --- records ---

    def _fill(self, held: "PartitionBackup", first: int) -> int:
        """Write what is missing, however often the leader changes. How many records that were."""
        from tidelog.cli.raw_log import is_for_now

        begun: int | None = None
        end, failures = -1, 0
        while True:
            try:
                reached = self._end(held, first)
                begun = reached if begun is None else begun
                failures = 0 if reached > end else failures
                end = reached
                if end == held.next_offset:
                    return end - begun
                self._write(held, end)
            except CommandError as error:
                failures += 1
                if failures > TRIES_MAX or not is_for_now(error):
                    raise
                time.sleep(TRY_S)

    def _end(self, held: "PartitionBackup", first: int) -> int:
        """Where the stream ends; it must hold this backup's records up to there, and nothing else."""
        from tidelog.cli.raw_log import LATEST, leader_of, offset_at

        node = leader_of(self._admin, self._name, held.partition).leader
        end = offset_at(self._admin, node, self._name, held.partition, LATEST)
        if end > held.next_offset or end < first:
            raise CommandError(f"stream {self._name} exists and is another: {_elsewhere(self._name)}")
        if end > first:
            self._compare(held, node, end - 1)
        return end

    def _compare(self, held: "PartitionBackup", node: int, offset: int) -> None:
        """The batch that holds `offset`, there and here."""
        from tidelog.cli.raw_log import fetch
        from tidelog.wire.batch import read_header

        records = fetch(self._admin, node, self._name, held.partition, offset).records
        for header, batch in self._folder.batches(self._manifest.stream, held, offset):
            ours = plain_batch(header, batch)
            theirs = bytes(records[: len(ours)]) if records else b""
            # All but the leader's stamp: base offset, then everything from the checksum on.
            same = ours[17:] == theirs[17:] and read_header(theirs).base_offset == header.base_offset
            if not same or header.next_offset != offset + 1:
                raise CommandError(f"stream {self._name} exists and is another: {_elsewhere(self._name)}")
            return

    def _write(self, held: "PartitionBackup", since: int) -> None:
        from tidelog.cli.raw_log import leader_of, receive_offset, send_batch

        place = f"{self._name}:{held.partition}"
        link = self._admin.connect(leader_of(self._admin, self._name, held.partition).leader)
        due: list[int] = []

        def take() -> None:
            offset = receive_offset(link, place)
            expected = due.pop(0)
            if offset != expected:
                raise CommandError(
                    f"a batch of offset {expected} became {offset}: somebody else writes to {self._name}, or a batch "
                    f"was taken twice. Delete the stream, and restore it again"
                )

        try:
            for header, batch in self._folder.batches(self._manifest.stream, held, since):
                if link.unanswered >= WINDOW:
                    take()
                send_batch(link, self._name, held.partition, plain_batch(header, batch))
                due.append(header.base_offset)
                self._line.show(f"{place}: {header.base_offset} of {held.next_offset}")
            while due:
                take()
        finally:
            link.close()

    # --- the rest ---

    def _trim(self, held: "PartitionBackup") -> None:
        """The batch that holds the start offset began before it."""
        from tidelog.cli.admin import reason
        from tidelog.cli.raw_log import leader_of
        from tidelog.wire.messages import (
            DeleteRecordsRequest,
            DeleteRecordsRequestPartition,
            DeleteRecordsRequestTopic,
        )

        wanted = DeleteRecordsRequestPartition(partition_index=held.partition, offset=held.start_offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsRequestTopic(name=self._name, partitions=[wanted])],
            timeout_ms=int(ANSWER_S_MAX * 1000),
        )
        node = leader_of(self._admin, self._name, held.partition).leader
        found = self._admin.ask_node(node, request, timeout_s=ANSWER_S_MAX + 5).topics[0].partitions[0]
        if found.error_code:
            raise CommandError(f"{self._name}:{held.partition} was not trimmed: {reason(found.error_code)}")

    def _set_configs(self, retention: bool) -> None:
        from tidelog.cli.admin import reason
        from tidelog.cli.topics import TOPIC_RESOURCE
        from tidelog.wire.messages import (
            IncrementalAlterConfigsEntry,
            IncrementalAlterConfigsRequest,
            IncrementalAlterConfigsRequestResource,
        )

        entries: list[Any] = []
        for name in HELD_BACK:
            if name in RETENTION and not retention:
                continue
            value = self._manifest.configs.get(name)
            entries.append(
                IncrementalAlterConfigsEntry(name=name, config_operation=1 if value is None else 0, value=value)
            )
        resource = IncrementalAlterConfigsRequestResource(
            resource_type=TOPIC_RESOURCE, resource_name=self._name, configs=entries
        )
        found = self._admin.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
        if found.error_code:
            raise CommandError(f"stream {self._name}: {reason(found.error_code, found.error_message)}")


def _elsewhere(name: str) -> str:
    return f"restore under another name ({name}=NEWNAME), or delete it first"


def plain_batch(header: "BatchHeader", batch: bytes) -> bytes | bytearray:
    """The batch as a producer without an id sends it, with the same records, times and compression."""
    from tidelog.wire.batch import ATTRIBUTE_APPEND_TIME, NO_PRODUCER, seal
    from tidelog.wire.compression import codec_of
    from tidelog.wire.records import build_batch, read_records

    if header.attributes & ATTRIBUTE_APPEND_TIME:  # only a log may set it: its time becomes that of every record
        return build_batch(read_records(batch), header.base_offset, codec=codec_of(header.attributes))
    if header.producer_id == NO_PRODUCER and header.producer_epoch == -1 and header.base_sequence == -1:
        return batch
    changed = bytearray(batch)
    _PRODUCER.pack_into(changed, _PRODUCER_AT, NO_PRODUCER, -1, -1)
    seal(changed)
    return changed
