"""`node.json`: whose folder this is. It is written last when a folder is made, and without it there is none.

| field | meaning |
| --- | --- |
| format | 1; 2 in the folders of a node with several, which a version that knows of one only must not open |
| directory | the folder's own id, drawn at random when it is made: another id is another disk |
| cluster | the cluster the node belongs to, once it is known |
| folders | in the first of several: id and path of the others, as they were at the last start |
| first | in the others: the id of the first |
"""

import os
from dataclasses import dataclass, field
from typing import Any

from tidelog.storage.disk import Disk
from tidelog.storage.errors import FormatVersionError
from tidelog.storage.small_file import encode_json, read_json, replace_file

NAME = "node.json"
ALONE, SEVERAL = 1, 2


@dataclass(frozen=True, slots=True)
class NodeFile:
    directory: str
    cluster: str = ""
    folders: dict[str, str] = field(default_factory=dict[str, str])
    first: str = ""

    def encode(self) -> bytes:
        value: dict[str, Any] = {"format": SEVERAL if self.folders or self.first else ALONE}
        for name in ("directory", "cluster", "folders", "first"):
            if getattr(self, name):
                value[name] = getattr(self, name)
        return encode_json(value)


def read_node_file(disk: Disk, directory: str) -> NodeFile | None:
    """None: the folder is yet to be made. Refuses a format that is not ours."""
    path = os.path.join(directory, NAME)
    if not disk.exists(path):
        return None
    value = read_json(disk, path)
    if value["format"] not in (ALONE, SEVERAL):
        raise FormatVersionError(f"{directory} has format {value['format']}; this version reads {ALONE} and {SEVERAL}")
    return NodeFile(
        value.get("directory", ""), value.get("cluster", ""), value.get("folders", {}), value.get("first", "")
    )


def write_node_file(disk: Disk, directory: str, content: NodeFile) -> None:
    replace_file(disk, os.path.join(directory, NAME), content.encode())
