"""`stream.json`: the little that a stream's log must know besides its segments.

| field | meaning |
| --- | --- |
| format | version of the stream's files |
| stream, uuid | the stream's number on this cluster, and the identity of this replica's files |
| era | rises at each take-over; segments of an older era are leftovers |
| floor | index, term and next offset of the entry before the first one kept; segments at or below are leftovers |
| start_offset | the log start that clients see; never below the floor's offset |
| configuration | index and content (hex) of the newest membership entry at or below the floor, or a later, committed |
| application | index and content (hex): what the log's user has made of the committed entries up to that index |
| learned_start | the log start of the replica whose beginning was taken over; 0: none was |
"""

import os
from dataclasses import dataclass
from typing import Any

from tidelog.storage.disk import Disk
from tidelog.storage.errors import FormatVersionError
from tidelog.storage.small_file import encode_json, read_json

STATE_NAME = "stream.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Floor:
    index: int
    term: int
    offset: int


@dataclass(frozen=True, slots=True)
class StreamState:
    stream: int
    uuid: bytes
    era: int
    floor: Floor
    start_offset: int
    configuration_index: int
    configuration: bytes
    application_index: int = 0
    application: bytes = b""
    learned_start: int = 0

    def encode(self) -> bytes:
        value: dict[str, Any] = {
            "format": FORMAT,
            "stream": self.stream,
            "uuid": self.uuid.hex(),
            "era": self.era,
            "floor": {"index": self.floor.index, "term": self.floor.term, "offset": self.floor.offset},
            "start_offset": self.start_offset,
            "configuration": {"index": self.configuration_index, "content": self.configuration.hex()},
            "application": {"index": self.application_index, "content": self.application.hex()},
            "learned_start": self.learned_start,
        }
        return encode_json(value)


def load_state(disk: Disk, folder: str) -> StreamState:
    path = os.path.join(folder, STATE_NAME)
    value = read_json(disk, path)
    if value["format"] != FORMAT:
        raise FormatVersionError(f"{path} has format {value['format']}; this version reads {FORMAT}")
    return StreamState(
        stream=value["stream"],
        uuid=bytes.fromhex(value["uuid"]),
        era=value["era"],
        floor=Floor(**value["floor"]),
        start_offset=value["start_offset"],
        configuration_index=value["configuration"]["index"],
        configuration=bytes.fromhex(value["configuration"]["content"]),
        application_index=value["application"]["index"],
        application=bytes.fromhex(value["application"]["content"]),
        learned_start=value.get("learned_start", 0),
    )
