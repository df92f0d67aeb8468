"""Kafka's message codec: declare a message once as a table, read and write every version of it.

    decode(HeartbeatRequest, version=4, flexible=True, data=body)  -> (request, position behind it)
    encode(response, version=4, flexible=True)                     -> list of buffers for `writelines` or `sendmsg`

A table (codec_fields) is compiled on first use for each version (codec_decode, codec_encode) to a Python function that
stays for the life of the process: a few milliseconds once, then a few hundred nanoseconds a struct. Nothing is compiled
for versions that nobody speaks.

`flexible` says which of the two encodings a version has: classic (int16 and int32 lengths) or flexible (KIP-482:
compact lengths, and a section of tagged fields at the end of every struct). `messages.APIS` knows which.

Bytes from outside raise ProtocolError or give a value, nothing else. A decoded object costs up to some 60 times its
smallest encoding, so whoever reads frames must bound them.
"""

from typing import Any, TypeVar

from tidelog.wire.codec_decode import Decoder, compile_decoder
from tidelog.wire.codec_encode import Cuts, Encoder, compile_encoder, interleave
from tidelog.wire.codec_fields import (
    ZERO_UUID,
    Buffer,
    array,
    boolean,
    bytes_,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    table,
    uint16,
    uint32,
    uuid,
)

__all__ = [
    "ZERO_UUID",
    "Buffer",
    "array",
    "boolean",
    "bytes_",
    "decode",
    "decoder",
    "encode",
    "encode_onto",
    "encoder",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "records",
    "string",
    "struct",
    "table",
    "uint16",
    "uint32",
    "uuid",
]

T = TypeVar("T")

# Bounded by what is declared: classes times versions times two.
_decoders: dict[tuple[type[Any], int, bool], Decoder[Any]] = {}
_encoders: dict[tuple[type[Any], int, bool], Encoder[Any]] = {}


def decoder(cls: type[T], version: int, flexible: bool) -> Decoder[T]:
    """The function that reads this version of a message: `(data, position) -> (object, position behind it)`."""
    key = (cls, version, flexible)
    made = _decoders.get(key)
    if made is None:
        made = _decoders[key] = compile_decoder(cls, version, flexible)
    return made


def encoder(cls: type[T], version: int, flexible: bool) -> Encoder[T]:
    """The function that writes this version of a message: `(object, out, cuts) -> None`, see codec_encode."""
    key = (cls, version, flexible)
    made = _encoders.get(key)
    if made is None:
        made = _encoders[key] = compile_encoder(cls, version, flexible)
    return made


def decode(cls: type[T], version: int, flexible: bool, data: Buffer, position: int = 0) -> tuple[T, int]:
    """Read one message at `position`: the object, and where it ends. Records in it are views of `data`."""
    return decoder(cls, version, flexible)(data, position)


def encode(message: object, version: int, flexible: bool) -> list[Buffer]:
    """The message as buffers to be sent one after the other: each `records` field is one of them, uncopied."""
    return encode_onto(bytearray(), message, version, flexible)


def encode_onto(out: bytearray, message: object, version: int, flexible: bool) -> list[Buffer]:
    """As `encode`, behind what `out` holds already, so that a header shares the first buffer."""
    cuts: Cuts = []
    encoder(type(message), version, flexible)(message, out, cuts)
    return interleave(out, cuts)
