"""The cluster as the commands reach it: through Kafka's protocol and nothing else, so Apache Kafka serves as well.

Every wait has a bound, and every refusal becomes one line (`CommandError`) that says what to do. confluent-kafka is
imported where it is used: `tidelog --help` must not wait for it.
"""

# pyright: reportPrivateImportUsage=false
# (confluent_kafka.admin documents these names as its API, but does not mark them as exported)

import argparse
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.cli import CommandError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, TopicDescription

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
RETRY_S = 0.2
OFFSETS_S_MAX = 3.0  # for one attempt to ask the leaders of partitions
ANSWER_S_MAX = 10.0  # for any question to the cluster that is not a stream of records

Answer = TypeVar("Answer")


class UnknownStream(CommandError):
    """The cluster has no stream of this name."""


class LeaderMoving(CommandError):
    """A partition has no leader, or another one: for now."""


class Silence(CommandError):
    """No answer in time."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds: earliest <= offset < latest."""

    earliest: int
    latest: int


# --- arguments --------------------------------------------------------------------------------------------------------


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        type=addresses,
        default=os.environ.get("TIDELOG_BOOTSTRAP", BOOTSTRAP_DEFAULT),
        help=f"the cluster; several with commas (default: $TIDELOG_BOOTSTRAP, else {BOOTSTRAP_DEFAULT})",
    )


def addresses(text: str) -> str:
    try:
        split_addresses(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT") from None
    return text


def stream_name(text: str) -> str:
    if not text or not text.isascii():
        raise argparse.ArgumentTypeError(f"{text!r} cannot name a stream: use letters, digits, '.', '_' and '-'")
    return text


def plain(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return text


def pair(text: str) -> tuple[str, str]:
    name, equals, value = plain(text).partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def number_from(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number, `least` or more."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return number


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


# --- the cluster ------------------------------------------------------------------------------------------------------


class Cluster:
    """Questions to a cluster, each answered in `ANSWER_S_MAX` or refused with a `CommandError`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.check_reachable()
        self.admin = self._new_admin()

    def _new_admin(self) -> "AdminClient":
        from confluent_kafka.admin import AdminClient

        return AdminClient(settings(self.bootstrap))

    def check_reachable(self) -> None:
        """librdkafka would try for the whole of its timeout, and not say why: connect once ourselves first."""
        reasons: list[str] = []
        places = split_addresses(self.bootstrap)
        for host, port in places:
            try:
                socket.create_connection((host, port), timeout=ANSWER_S_MAX / len(places)).close()
            except (OSError, OverflowError, UnicodeError) as error:  # the last two: no such port, no such name
                reasons.append(getattr(error, "strerror", None) or str(error))
            else:
                return
        raise no_cluster(self.bootstrap, reasons[-1])

    def answer(self, future: "Future[Answer]", stream: str) -> Answer:
        with refusals(self.bootstrap, stream):
            return future.result(ANSWER_S_MAX + 1)  # the request's own timeout comes first

    def describe(self, name: str) -> "TopicDescription":
        from confluent_kafka import TopicCollection

        futures = self.admin.describe_topics(TopicCollection([name]), request_timeout=ANSWER_S_MAX)
        return self.answer(futures[name], name)

    def describe_all(self) -> "list[TopicDescription]":
        """By name. A stream that is deleted while we ask is left out."""
        from confluent_kafka import TopicCollection

        with refusals(self.bootstrap, "*"):
            names = sorted(self.admin.list_topics(timeout=ANSWER_S_MAX).topics)
        described: list[TopicDescription] = []
        if names:  # librdkafka does not take an empty question
            futures = self.admin.describe_topics(TopicCollection(names), request_timeout=ANSWER_S_MAX)
            for name in names:
                with suppress(UnknownStream):
                    described.append(self.answer(futures[name], name))
        return described

    def partitions(self, stream: str, only: int | None = None) -> list[int]:
        """The stream's partitions, or the one that was asked for, if it is there."""
        found = sorted(partition.id for partition in self.describe(stream).partitions)
        if only is None:
            return found
        if only not in found:
            raise CommandError(f"stream {stream} has no partition {only}: it has {found[0]} to {found[-1]}")
        return [only]

    def bounds(self, stream: str, partitions: Iterable[int]) -> dict[int, Bounds]:
        from confluent_kafka.admin import OffsetSpec

        partitions = list(partitions)
        earliest = self.offsets(stream, partitions, OffsetSpec.earliest())
        latest = self.offsets(stream, partitions, OffsetSpec.latest())
        return {partition: Bounds(earliest[partition], latest[partition]) for partition in partitions}

    def offsets(self, stream: str, partitions: list[int], spec: Any) -> dict[int, int]:
        """What an `OffsetSpec` means in each partition; -1 when nothing is that young."""
        give_up = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                return self._offsets(stream, partitions, spec)
            except (LeaderMoving, Silence):
                if time.monotonic() > give_up:
                    raise
            time.sleep(RETRY_S)
            self.admin = self._new_admin()  # this one asks the old leader again and again, out of its cache

    def _offsets(self, stream: str, partitions: list[int], spec: Any) -> dict[int, int]:
        from confluent_kafka import TopicPartition

        futures = self.admin.list_offsets(
            {TopicPartition(stream, partition): spec for partition in partitions}, request_timeout=OFFSETS_S_MAX
        )
        return {place.partition: self.answer(future, stream).offset for place, future in futures.items()}


def settings(bootstrap: str, more: Mapping[str, object] | None = None) -> dict[str, Any]:
    """librdkafka's settings. Its log is silent: what matters reaches us as an error."""
    return {"bootstrap.servers": bootstrap, "client.id": "tidelog-cli", "log_level": 0, **(more or {})}


@contextmanager
def refusals(bootstrap: str, stream: str) -> Iterator[None]:
    """Turn what librdkafka raises into one line for the user."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as exception:
        raise refusal(exception.args[0], bootstrap, stream) from None
    except TimeoutError:
        raise _silence(bootstrap) from None


def refusal(error: "KafkaError", bootstrap: str, stream: str) -> CommandError:
    from confluent_kafka import KafkaError

    match error.code():
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC:
            return UnknownStream(
                f"there is no stream {stream}: see `tidelog stream list`, or make it with `tidelog stream create`"
            )
        case KafkaError.TOPIC_ALREADY_EXISTS:
            return CommandError(f"stream {stream} exists already: change it with `tidelog stream alter {stream}`")
        case (
            KafkaError.LEADER_NOT_AVAILABLE
            | KafkaError.NOT_LEADER_FOR_PARTITION
            | KafkaError.OFFSET_NOT_AVAILABLE
            | KafkaError.FENCED_LEADER_EPOCH
            | KafkaError.UNKNOWN_LEADER_EPOCH
        ):
            return LeaderMoving(f"stream {stream}: a partition has no leader now; see `tidelog cluster status`")
        case KafkaError._TIMED_OUT | KafkaError._TRANSPORT | KafkaError._ALL_BROKERS_DOWN:
            return _silence(bootstrap)
        case _:
            return CommandError(f"stream {stream}: {' '.join(error.str().split())}")


def _silence(bootstrap: str) -> Silence:
    return Silence(
        f"no answer from {bootstrap} in {ANSWER_S_MAX:.0f} s: is it a Tidelog or Kafka node, and is it well?"
    )


def no_cluster(bootstrap: str, why: str) -> CommandError:
    return CommandError(f"no cluster at {bootstrap} ({why}): start one with `tidelog up`, or name one with --bootstrap")


def split_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """(host, port) of each; ValueError when it is something else."""
    places = [address.strip().rpartition(":") for address in bootstrap.split(",")]
    if not all(port.isdecimal() for _, _, port in places):
        raise ValueError(f"{bootstrap!r} is not HOST:PORT")
    return [(host.strip("[]"), int(port)) for host, _, port in places]
