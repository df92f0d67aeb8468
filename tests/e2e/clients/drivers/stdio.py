"""The driver's side of the protocol, for drivers written in Python: one JSON command a line in, one answer a line out.

Standard library only, since a driver runs in the environment of its client. What a driver must answer is said in
tests/e2e/clients/__init__.py; here is what does not depend on the client: the loop, base64, and consumers that are
polled until something holds or time is up.
"""

import base64
import json
import os
import sys
import threading
import time
import traceback
from typing import Any, Protocol

# A poll of the client takes at most this long.
STEP_S = 0.1

Partition = tuple[str, int]
Json = dict[str, Any]


class Refused(Exception):
    """The client or the broker said no; `code` is Kafka's error code, None where there is none."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code

    def as_json(self) -> Json:
        return {"code": self.code, "message": str(self)}


class Consumer(Protocol):
    def step(self, timeout_s: float) -> list[Json]:
        """Poll once, for at most `timeout_s`; the records that came."""
        ...

    def assignment(self) -> list[Partition]: ...

    def commit(self, offsets: dict[Partition, int] | None) -> None:
        """These offsets, or the positions after the last records returned."""
        ...

    def committed(self, partition: Partition) -> int | None: ...

    def close(self) -> None: ...


class Client(Protocol):
    """Besides these, one method for each command of the admin kind; its arguments are the command's fields."""

    def hello(self) -> Json: ...

    def produce(self, topic: str, codec: str, idempotent: bool, acks: int, records: list[Json]) -> list[Json]:
        """One `{"partition", "offset"}` or `{"error"}` for each record, in order."""
        ...

    def open(self, spec: Json) -> Consumer: ...

    def refusal(self, error: Exception) -> Refused | None:
        """What the client's own exception means; None when it is a bug of the driver."""
        ...


def decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def record_to_json(topic, partition, offset, timestamp, key, value, headers) -> Json:
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": encode(key),
        "value": encode(value),
        "headers": [[name, encode(data)] for name, data in headers or ()],
    }


def headers_of(record: Json) -> list[tuple[str, bytes]]:
    return [(name, base64.b64decode(data)) for name, data in record["headers"]]


class _Polling:
    """Polls consumers, each in a thread of its own, until the context is left."""

    def __init__(self, consumers: dict[str, Consumer]) -> None:
        self.records: dict[str, list[Json]] = {name: [] for name in consumers}
        self.assignments: dict[str, list[Partition]] = {name: [] for name in consumers}
        self._errors: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._poll, args=each, daemon=True) for each in consumers.items()]

    def __enter__(self) -> "_Polling":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _poll(self, name: str, consumer: Consumer) -> None:
        try:
            while not self._stop.is_set():
                self.records[name] += consumer.step(STEP_S)
                self.assignments[name] = sorted(consumer.assignment())
        except Exception as error:  # noqa: BLE001 - raised again by check()
            self._errors.append(error)

    def check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def settled(self, partitions: int) -> bool:
        held = [partition for assignment in self.assignments.values() for partition in assignment]
        return len(held) == len(set(held)) == partitions and all(self.assignments.values())


class Session:
    """The consumers that are open, each with the records that were polled and not yet asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._consumers: dict[str, Consumer] = {}
        self._waiting: dict[str, list[Json]] = {}

    def open(self, consumer: str, **spec: Any) -> Json:
        self._consumers[consumer] = self._client.open(spec)
        self._waiting[consumer] = []
        return {}

    def poll(self, consumer: str, count: int, timeout_ms: int) -> Json:
        deadline = time.monotonic() + timeout_ms / 1000
        waiting = self._waiting[consumer]
        while len(waiting) < count and time.monotonic() < deadline:
            waiting += self._consumers[consumer].step(STEP_S)
        self._waiting[consumer] = waiting[count:]
        return {"records": waiting[:count]}

    def settle(self, consumers: list[str], partitions: int, timeout_ms: int) -> Json:
        """Poll all until each has partitions, no two have the same, and together they have `partitions`.

        Each in its own thread: there are clients whose poll waits for the rebalance, which waits for the others.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        with _Polling({name: self._consumers[name] for name in consumers}) as polling:
            while not polling.settled(partitions):
                polling.check()
                if time.monotonic() > deadline:
                    raise Refused(None, f"no agreement on {partitions} partitions: {polling.assignments}")
                time.sleep(0.01)
        for name in consumers:
            self._waiting[name] += polling.records[name]
        return {"assignments": polling.assignments}

    def commit(self, consumer: str, offsets: list[list[Any]] | None = None) -> Json:
        chosen = None if offsets is None else {(topic, number): offset for topic, number, offset in offsets}
        self._consumers[consumer].commit(chosen)
        return {}

    def committed(self, consumer: str, topic: str, partition: int) -> Json:
        return {"offset": self._consumers[consumer].committed((topic, partition))}

    def close(self, consumer: str) -> Json:
        self._waiting.pop(consumer, None)
        opened = self._consumers.pop(consumer, None)
        if opened is not None:
            opened.close()
        return {}

    def reset(self) -> Json:
        for consumer in list(self._consumers):
            self.close(consumer)
        return {}


SESSION_COMMANDS = ("open", "poll", "settle", "commit", "committed", "close", "reset")


def answer(session: Session, client: Client, command: Json) -> Json:
    op = command.pop("op")
    if op in SESSION_COMMANDS:
        return getattr(session, op)(**command)
    if op == "produce":
        return {"results": client.produce(**command)}
    return getattr(client, op)(**command) or {}


def serve(client: Client) -> None:
    """Answer until stdin ends. Only answers go to the real stdout; whatever a client prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    session = Session(client)
    for line in sys.stdin:
        try:
            reply = {"ok": answer(session, client, json.loads(line))}
        except Exception as error:  # noqa: BLE001 - every failure is an answer; what it means is the test's business
            refused = error if isinstance(error, Refused) else client.refusal(error)
            if refused is None:
                reply = {"bug": traceback.format_exc()}
            else:
                reply = {"error": refused.as_json()}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
    session.reset()
