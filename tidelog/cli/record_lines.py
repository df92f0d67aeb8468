"""A record as a line of output: its bytes as they are, or a JSON object."""

import base64
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Message


def value_line(message: "Message") -> bytes:
    return (message.value() or b"") + b"\n"


def key_value_line(message: "Message") -> bytes:
    return (message.key() or b"") + b"\t" + value_line(message)


def json_line(message: "Message") -> bytes:
    """Time is in milliseconds since 1970. What is not UTF-8 is base64, and its field's name ends in `_base64`."""
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    kind, timestamp_ms = message.timestamp()
    record = {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        **_field("key", message.key()),
        **_field("value", message.value()),
        "headers": [{"name": name, **_field("value", value)} for name, value in message.headers() or []],
    }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _field(name: str, content: Any) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
