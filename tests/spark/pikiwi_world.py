"""WALs with known commands in them, and what their events should be."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidelog.pikiwi.binlog import BinlogItem, encode_item
from tidelog.pikiwi.checkpoint import CheckpointFile
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.event import Event, EventBuilder, EventSettings
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import encode_command
from tidelog.pikiwi.wal import FileWal, open_wal, wal_folder

START = Position(3, 100)
LINEAGE = "dfe36f6e6bf2c7de85df3657e8ad1b519a3ecc56b509ecedb0"
SEGMENT_BYTES = 64 << 10

Commands = Sequence[Sequence[bytes]]
Items = list[tuple[Position, bytes]]


def shop(count: int, seed: int = 1) -> list[list[bytes]]:
    """Commands of all kinds, with what is hostile among them; no two alike."""
    chance = random.Random(seed)
    commands: list[list[bytes]] = []
    for number in range(count):
        key = b"key-%d" % chance.randrange(50)
        value = b"value-%d-%d" % (seed, number)
        kind = chance.randrange(40)
        if kind == 0:
            commands.append([b"RENAME", key, b"renamed-%d" % number])
        elif kind == 1:
            commands.append([b"FLUSHDB"])
        elif kind == 2:
            commands.append([b"SET", b"\xff\x00binary\r\n" + key, b"\r\n\x00" + value])
        elif kind == 3:
            commands.append([b"HMSET", key, *(b"%s-%d" % (value, each) for each in range(40))])
        elif kind < 12:
            commands.append([b"pksetexat", key, b"%d" % (1_794_771_485 + number), value])
        elif kind < 18:
            commands.append([b"RPUSH", key, value, b""])
        elif kind < 22:
            commands.append([b"DEL", key + value])
        else:
            commands.append([b"SET", key, value])
    return commands


def items(commands: Commands, after: Position = START, first: int = 0) -> Items:
    """As a master numbers them."""
    end, made = after.offset, []
    for number, command in enumerate(commands):
        content = encode_command(command)
        start, end = end, end + 34 + 8 + len(content)
        item = BinlogItem(1_700_000_000 + number // 100, 0, first + number, Position(after.filenum, start), content)
        made.append((Position(after.filenum, end), encode_item(item)))
    return made


class Source:
    """A source of one or more databases, with a writer where its receiver would be."""

    def __init__(self, folder: Path, databases: Sequence[str] = ("db0",), **settings: Any) -> None:
        self.folder = folder
        self.config = Config(
            master_port=9221,
            db_name=",".join(databases),
            wal_dir=folder / "wal",
            dump_path=folder / "dump",
            checkpoint_path=folder / "checkpoint.json",
            **settings,
        )
        self.file = CheckpointFile(self.config.checkpoint_path, self.config.source, databases[0])
        self.wals = {name: self._open(name) for name in databases}
        self.written: dict[str, Items] = {name: [] for name in databases}

    def _open(self, db: str) -> Any:
        if self.config.wal_backend == "stream":
            return open_wal(self.config, db)
        return FileWal(wal_folder(self.config, db), SEGMENT_BYTES, 1)

    def begin(self, position: Position = START, db: str = "db0") -> None:
        self.wals[db].reset(position)
        place = self.wals[db].durable
        assert place is not None
        self.file.restart_from(db, place, "test")
        self.written[db] = []

    def write(self, commands: Commands, db: str = "db0") -> Items:
        wal = self.wals[db]
        assert wal.last_position is not None
        made = items(commands, wal.last_position, wal.last_seq)
        wal.append(7, made)
        wal.sync()
        self.book(db)
        self.written[db] += made
        return made

    def book(self, db: str = "db0") -> None:
        """What a receiver does now and then: DurableCP into the checkpoint, what was delivered out of the WAL."""
        wal = self.wals[db]
        assert wal.durable is not None
        checkpoint = self.file.advance_durable({db: wal.durable}, {db: 7}, LINEAGE)
        ack = checkpoint.database(db).ack_cp
        if ack is not None:
            wal.clean(ack.position)

    def events(self, db: str = "db0", written: Items | None = None) -> list[Event]:
        """What the slow and simple builder makes of all that was written."""
        builder = EventBuilder(EventSettings(db, self.config.source, LINEAGE))
        made = [builder.binlog_event(*item) for item in (self.written[db] if written is None else written)]
        return [event for event in made if event is not None]

    @property
    def settings(self) -> dict[str, object]:
        """For the option `settings`."""
        config = self.config
        return {
            "master_port": config.master_port,
            "db_name": config.db_name,
            "wal_dir": str(config.wal_dir),
            "dump_path": str(config.dump_path),
            "checkpoint_path": str(config.checkpoint_path),
        }

    def close(self) -> None:
        for wal in self.wals.values():
            wal.close()
