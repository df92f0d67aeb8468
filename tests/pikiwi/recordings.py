"""Recordings of real servers (`fixtures/*.pcap`): the bytes of each connection, in both directions, out of a pcap file.

Just enough of pcap, Ethernet, IPv4 and TCP for recordings on loopback: no options are looked at, segments are put in
order by their sequence numbers. Long packets were cut at 2,000 bytes when they were recorded, so a direction with data
is only `whole` up to its first cut.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.pikiwi.protocol import REPLICATION_PORT_DISTANCE, RSYNC_PORT_DISTANCE, FrameDecoder

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = ("3.5.5", "4.0.1")
ETHERNET_BYTES = 14
_PACKET = struct.Struct("<IIII")
_SYN = 0x02


@dataclass
class Direction:
    """What one side sent: (second, bytes), in order."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    whole: bool = True
    next_sequence: int | None = None

    def frames(self) -> Iterator[tuple[float, bytes]]:
        """With the time at which each was complete."""
        decoder = FrameDecoder(64 << 20)
        for second, data in self.pieces:
            decoder.feed(data)
            for frame in decoder:
                yield second, frame


@dataclass
class Conversation:
    server_port: int
    to_server: Direction = field(default_factory=Direction)
    to_client: Direction = field(default_factory=Direction)


def conversations(version: str) -> list[Conversation]:
    """Of a real slave with its master: one for replication, and those of rsync2."""
    found: dict[tuple[int, int], Conversation] = {}
    for second, packet, recorded_whole in _packets(FIXTURES / f"real-slave-{version}.pcap"):
        ip = packet[ETHERNET_BYTES:]
        tcp = ip[(ip[0] & 15) * 4 : int.from_bytes(ip[2:4], "big")]
        source, target, sequence = struct.unpack_from(">HHI", tcp)
        payload = tcp[(tcp[12] >> 4) * 4 :]
        syn = bool(tcp[13] & _SYN)
        if (source, target) not in found and (target, source) not in found:
            found[source, target] = Conversation(target)  # the client speaks first
        own = found.get((source, target))
        direction = own.to_server if own is not None else found[target, source].to_client
        _take(direction, second, sequence + syn, payload, recorded_whole)
    return list(found.values())


def _take(direction: Direction, second: float, sequence: int, payload: bytes, recorded_whole: bool) -> None:
    expected = sequence if direction.next_sequence is None else direction.next_sequence
    if sequence < expected or not direction.whole:
        return  # sent again, or behind a cut
    assert sequence == expected, "the recording has a hole"
    direction.whole = recorded_whole
    direction.next_sequence = sequence + len(payload)
    if payload:
        direction.pieces.append((second, payload))


def _packets(path: Path) -> Iterator[tuple[float, bytes, bool]]:
    data = path.read_bytes()
    assert data[:4].hex() == "d4c3b2a1"
    at = 24
    begin: float | None = None
    while at < len(data):
        seconds, microseconds, kept, length = _PACKET.unpack_from(data, at)
        at += _PACKET.size
        second = seconds + microseconds / 1e6
        begin = second if begin is None else begin
        yield second - begin, data[at : at + kept], kept == length
        at += kept


def replication(version: str) -> Conversation:
    [found] = [
        each for each in conversations(version) if each.server_port - REPLICATION_PORT_DISTANCE in _ports(version)
    ]
    return found


def rsync(version: str) -> list[Conversation]:
    return [each for each in conversations(version) if each.server_port - RSYNC_PORT_DISTANCE in _ports(version)]


def _ports(version: str) -> tuple[int, ...]:
    """Of the master that was recorded, for commands."""
    return {"3.5.5": (9421,), "4.0.1": (9221,)}[version]
