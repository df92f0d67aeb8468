"""Offsets as Spark's Kafka source writes them into options and checkpoints: {"topic": {"partition": offset}}.

{"orders": {"0": 23, "1": -2}}     in options -2 stands for the earliest offset, -1 for the latest
{"orders": {"0": 1700000000000}}   offsets by time: the first record that is not older
{"orders": [0, 1]}                 partitions, in the option `assign`
"""

import json
from collections.abc import Mapping
from typing import Any

from tidelog.spark.errors import BadOption

LATEST = -1
EARLIEST = -2

Partition = tuple[str, int]
Offsets = dict[Partition, int]


def to_tree(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    tree: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        tree.setdefault(topic, {})[str(partition)] = offset
    return tree


def from_tree(tree: Any, what: str = "offsets") -> Offsets:
    if not isinstance(tree, dict):
        raise BadOption(f'{what}: expected {{"topic": {{"0": offset}}}}, got {tree!r}')
    offsets: Offsets = {}
    for topic, partitions in tree.items():
        if not isinstance(partitions, dict):
            raise BadOption(f'{what}: expected {{"0": offset}} for topic {topic}, got {partitions!r}')
        for partition, offset in partitions.items():
            if not str(partition).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
                raise BadOption(f"{what}: topic {topic} has {partition!r}: {offset!r}, which is no partition: offset")
            offsets[topic, int(partition)] = offset
    return offsets


def parse_offsets(text: str, option: str) -> Offsets:
    offsets = from_tree(_json(text, option), option)
    for (topic, partition), offset in offsets.items():
        if offset < EARLIEST:
            raise BadOption(f"{option}: {offset} is no offset of {topic}-{partition}; -2 is earliest, -1 latest")
    return offsets


def parse_times(text: str, option: str) -> Offsets:
    times = from_tree(_json(text, option), option)
    for (topic, partition), time_ms in times.items():
        if time_ms < 0:
            raise BadOption(f"{option}: {time_ms} is no time of {topic}-{partition}: milliseconds since 1970")
    return times


def parse_assign(text: str) -> list[Partition]:
    tree = _json(text, "assign")
    if not isinstance(tree, dict) or not tree:
        raise BadOption(f'assign: expected {{"topic": [0, 1]}}, got {text}')
    found: list[Partition] = []
    for topic, partitions in tree.items():
        if not isinstance(partitions, list) or not partitions:
            raise BadOption(f"assign: expected a list of partitions for topic {topic}, got {partitions!r}")
        for partition in partitions:
            if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
                raise BadOption(f"assign: {partition!r} is no partition of topic {topic}")
            found.append((topic, partition))
    return sorted(set(found))


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadOption(f"{option}: {text!r} is not JSON ({error})") from None
