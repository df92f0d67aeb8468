"""A PikiwiDB master that does nothing but send: prepared messages, as fast as its window of 9,000 items allows.

    python -m bench.pikiwi_sender MESSAGES      serves one client after the other, the same messages to each

It shakes hands, then keeps the window full and counts what is acknowledged; it checks nothing, unlike the test master.
"""

import os
import socket
import sys

from tests.pikiwi.master_binlog import Binlog, resp
from tidelog.pikiwi.errors import ProtocolError
from tidelog.pikiwi.protocol import FrameDecoder, encode_frame, parse
from tidelog.pikiwi.protocol import inner_message_pb2 as pb

ITEMS_A_MESSAGE = 100
WINDOW_MESSAGES = 90
COMMAND_BYTES = 100
SESSION_ID = 1


def command(number: int) -> bytes:
    """Of 100 bytes, as RESP."""
    key = b"key:%012d" % number
    empty = len(resp(b"SET", key, b"")) + 1  # the value's length takes two digits
    return resp(b"SET", key, b"v" * (COMMAND_BYTES - empty))


def messages(count: int) -> list[bytes]:
    binlog = Binlog()
    for number in range(count * ITEMS_A_MESSAGE):
        binlog.append(command(number), 1_794_770_500)
    items = binlog.all_items()
    frames: list[bytes] = []
    for begin in range(0, len(items), ITEMS_A_MESSAGE):
        response = pb.InnerResponse(type=pb.kBinlogSync, code=pb.kOk)
        for end, data in items[begin : begin + ITEMS_A_MESSAGE]:
            offset = pb.BinlogOffset(filenum=end.filenum, offset=end.offset, term=0, index=0)
            slot = pb.Slot(db_name="db0", slot_id=0)
            response.binlog_sync.add(slot=slot, binlog_offset=offset, binlog=data, session_id=SESSION_ID)
        frames.append(encode_frame(response))
    return frames


def greeting(request: pb.InnerRequest) -> pb.InnerResponse | None:
    """The answer to what comes before the stream."""
    response = pb.InnerResponse(type=request.type, code=pb.kOk)
    match request.type:
        case pb.kMetaSync:
            meta = response.meta_sync
            meta.classic_mode, meta.run_id, meta.replication_id = True, "r" * 40, "l" * 50
            meta.dbs_info.add(db_name="db0", slot_num=1)
        case pb.kTrySync:
            reply = response.try_sync
            reply.reply_code = pb.InnerResponse.TrySync.kOk
            reply.slot.CopyFrom(request.try_sync.slot)
            reply.session_id = SESSION_ID
        case pb.kRemoveSlaveNode:
            response.remove_slave_node.add(
                node=request.remove_slave_node[0].node, slot=request.remove_slave_node[0].slot
            )
        case _:
            return None
    return response


def serve(client: socket.socket, frames: list[bytes]) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    decoder = FrameDecoder(1 << 20)
    sent = acknowledged = 0
    begun = False
    while True:
        while begun and sent < len(frames) and sent - acknowledged < WINDOW_MESSAGES:
            client.sendall(frames[sent])
            sent += 1
        data = client.recv(1 << 16)
        if not data:
            return
        decoder.feed(data)
        for frame in decoder:
            request = parse(pb.InnerRequest, frame)
            if request.type == pb.kBinlogSync:
                begun = begun or request.binlog_sync.first_send
                acknowledged += not request.binlog_sync.first_send and request.binlog_sync.ack_range_end.offset > 0
            elif (answer := greeting(request)) is not None:
                client.sendall(encode_frame(answer))


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    frames = messages(int(sys.argv[1]))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"ready bootstrap=127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            client, _ = listener.accept()
            try:
                with client:
                    serve(client, frames)
            except (ConnectionError, ProtocolError) as error:
                print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
