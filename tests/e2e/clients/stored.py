"""What really lies in the log: the codecs of the batches of a partition, from a Fetch spoken by hand.

A client that quietly sends its records uncompressed reads them back all the same; only the batches tell.
"""

import socket
import struct

from .client import CODECS

FETCH_KEY, FETCH_VERSION = 1, 4
FETCH_BYTES = 16 << 20
TIMEOUT_S = 20
# Kafka's record batch: length at 8, attributes at 21; the head before the length is 12 bytes.
BATCH_PREFIX_BYTES = 12


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _fetch_request(topic: str, partition: int) -> bytes:
    header = struct.pack(">hhi", FETCH_KEY, FETCH_VERSION, 1) + _string("stored")
    # replica, longest wait, least bytes, most bytes, isolation level, one topic
    body = struct.pack(">iiiib", -1, 100, 1, FETCH_BYTES, 0) + struct.pack(">i", 1) + _string(topic)
    body += struct.pack(">iiqi", 1, partition, 0, FETCH_BYTES)
    return struct.pack(">i", len(header + body)) + header + body


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the broker closed the connection"
        data += part
    return bytes(data)


def stored_codecs(bootstrap: str, topic: str, partition: int = 0) -> set[str]:
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(_fetch_request(topic, partition))
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    # correlation id, throttle time, one topic, its name, one partition
    place = 4 + 4 + 4 + 2 + len(topic) + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, place)
    assert error == 0, f"Fetch of {topic}: error {error}"
    place += 26 + 16 * max(0, aborted)
    (records_bytes,) = struct.unpack_from(">i", answer, place)
    records = answer[place + 4 : place + 4 + records_bytes]
    codecs, at = set(), 0
    while at + 61 <= len(records):
        (length,) = struct.unpack_from(">i", records, at + 8)
        (attributes,) = struct.unpack_from(">h", records, at + 21)
        codecs.add(CODECS[attributes & 7])
        at += BATCH_PREFIX_BYTES + length
    return codecs
