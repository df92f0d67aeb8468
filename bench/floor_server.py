"""What a server cannot do without, and nothing else: one connection, one thread, a loop of system calls.

`python -m bench.floor_server take FILE FILE_BYTES FRAME_BYTES BATCH_AT BATCH_BYTES` receives frames of one shape,
checks each batch's checksum, writes whatever has come as one group, syncs, and answers.

`python -m bench.floor_server give ANSWER_BYTES FILE…` answers every frame with the next bytes of the files, which it
reads in order and from the beginning again.

Both take one connection, and end with it.
"""

import os
import socket
import struct
import sys

from crc32c import crc32c

from bench.floor_disk import FloorFile

MIB = 1 << 20
ACCEPT_S_MAX = 60
SILENCE_S_MAX = 60
RECEIVE_BYTES = 4 * MIB
READ_BYTES = 1 * MIB
ANSWER = struct.pack(">ii", 46, 7) + bytes(42)  # as large as an answer to Produce
CRC_AT, CHECKED_FROM = 17, 21

_SIZE = struct.Struct(">i")
_CRC = struct.Struct(">I")


def accept() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(ACCEPT_S_MAX)
        print(f"ready bootstrap=127.0.0.1:{listener.getsockname()[1]}", flush=True)
        connection, _ = listener.accept()
    connection.settimeout(None)
    timeout = struct.pack("@ll", SILENCE_S_MAX, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def take(path: str, file_bytes: int, frame_bytes: int, batch_at: int, batch_bytes: int) -> None:
    file = FloorFile(path, file_bytes)
    memory = memoryview(bytearray(RECEIVE_BYTES))
    filled = 0
    with accept() as connection:
        while received := connection.recv_into(memory[filled:]):
            filled += received
            count = filled // frame_bytes
            if not count:
                continue
            batches = [
                memory[start : start + batch_bytes]
                for start in range(batch_at, batch_at + count * frame_bytes, frame_bytes)
            ]
            for batch in batches:
                assert crc32c(batch[CHECKED_FROM:]) == _CRC.unpack_from(batch, CRC_AT)[0]
            file.append_group(batches)
            connection.sendall(ANSWER * count)
            rest = filled - count * frame_bytes
            memory[:rest] = memory[count * frame_bytes : filled]
            filled = rest
    file.close()


def give(answer_bytes: int, paths: list[str]) -> None:
    memory = memoryview(bytearray(READ_BYTES))
    number = position = 0
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    with accept() as connection:
        while size := connection.recv(_SIZE.size, socket.MSG_WAITALL):
            connection.recv(_SIZE.unpack(size)[0], socket.MSG_WAITALL)
            connection.sendall(_SIZE.pack(answer_bytes))
            left = answer_bytes
            while left:
                read = os.preadv(descriptors[number], [memory[: min(left, READ_BYTES)]], position)
                if not read:
                    number, position = (number + 1) % len(descriptors), 0
                    continue
                connection.sendall(memory[:read])
                position += read
                left -= read


def main(arguments: list[str]) -> None:
    if arguments[0] == "take":
        path, *sizes = arguments[1:]
        take(path, *map(int, sizes))
    else:
        give(int(arguments[1]), arguments[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
