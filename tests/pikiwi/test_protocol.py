"""The messages are those of the wire, and the generated code is what the `.proto` files say."""

import re
from pathlib import Path

import pytest

from tidelog.pikiwi.position import ZERO, Position, PositionError
from tidelog.pikiwi.protocol import encode_frame
from tidelog.pikiwi.protocol import generate as generator
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.protocol.requests import ClientNode, Requests

REQUESTS = Requests(ClientNode("127.0.0.1", 9321))
VERSION_LINES = re.compile(r"^# Protobuf Python Version:.*\n|^    \d+,\n", re.MULTILINE)


def test_the_generated_code_is_of_the_proto_files(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed: it generates the code")
    generator.generate(tmp_path)
    for proto in generator.PROTOS:
        for suffix in ("_pb2.py", "_pb2.pyi"):
            path = Path(proto.removesuffix(".proto") + suffix)
            made, kept = ((folder / path).read_text() for folder in (tmp_path, generator.ROOT))
            assert VERSION_LINES.sub("", made) == VERSION_LINES.sub("", kept), f"{path}: generate it again"


def test_requests_are_byte_for_byte_those_of_a_real_slave() -> None:
    """Out of a recording of 4.0.1."""
    assert encode_frame(REQUESTS.meta_sync("")).hex() == "00000014080112100a0e0a093132372e302e302e3110e948"
    assert (
        encode_frame(REQUESTS.db_sync("db1", ZERO)).hex()
        == "000000230803221f0a0e0a093132372e302e302e3110e94812070a0364623110001a0408001000"
    )


def test_a_password_is_only_sent_when_there_is_one() -> None:
    assert not REQUESTS.meta_sync("").meta_sync.HasField("auth")
    assert REQUESTS.meta_sync("secret").meta_sync.auth == "secret"


def test_an_acknowledgement_of_nothing_cannot_be_made() -> None:
    for first, last in ((ZERO, ZERO), (Position(1, 2), Position(1, 1))):
        with pytest.raises(AssertionError):
            REQUESTS.acknowledge("db0", first, last, 1)


def test_a_3_5_master_does_not_say_how_many_instances_it_has() -> None:
    info = pb.InnerResponse.MetaSync.DBInfo(db_name="db0", slot_num=1)
    assert info.IsInitialized()


@pytest.mark.parametrize("text", ["0:0", "12:34567", f"{2**32 - 1}:{2**64 - 1}"])
def test_positions_as_text(text: str) -> None:
    assert str(Position.parse(text)) == text


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "-1:0", "1:2:3", "a:b", f"{2**32}:0", f"0:{2**64}", "1:٣"])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(PositionError):
        Position.parse(text)


def test_positions_are_ordered_by_file_first() -> None:
    assert sorted([Position(2, 0), Position(1, 99), Position(1, 5)]) == [(1, 5), (1, 99), (2, 0)]
