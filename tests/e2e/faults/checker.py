"""What a history must never show, in the style of Jepsen's Kafka workload. Pure: a history in, violations out.

| rule | what it says |
| --- | --- |
| lost | every acknowledged record is in the final read, at the offset it was acknowledged with |
| vanished | whatever anybody ever read is in the final read |
| conflict | an offset has one value, over all acknowledgements and all reads by anybody, ever |
| duplicate | a record of an idempotent producer is at one offset only |
| disorder | the records of an idempotent producer have offsets in the order they were sent in, acknowledged or not |
| phantom | nothing is read that was not sent, or was sent elsewhere |
| gap | a consumer's polls follow each other: each record's offset is one more than the last one's |
| skipped | the members of a group together read everything, from the first record that one of them got on |
| forgotten | a member that was assigned after its group had committed an offset begins at the last one or later |
| incomplete | the final read reaches from the earliest to the latest offset |
| backwards | earliest and latest never fall: for one client, nor from one that had its answer to one that asked later |
| stale | latest, asked for after an acknowledgement had come, is behind that record |
| unanswered | every record that was sent came to an end: an offset or an error |
| fatal | no idempotent producer is told something after which it cannot go on |
| promise-5 | after a produce failed on a connection nothing later on it is acknowledged, nor in the log without it |
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from .history import Asked, History

VIOLATIONS_PER_RULE_MAX = 5


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check(history: History) -> list[Violation]:
    """All rules; of each the first few violations, and how many there are."""
    violations: list[Violation] = []
    for name, rule in RULES.items():
        found = list(rule(history))
        violations += [Violation(name, text) for text in found[:VIOLATIONS_PER_RULE_MAX]]
        if len(found) > VIOLATIONS_PER_RULE_MAX:
            violations.append(Violation(name, f"… {len(found)} in all"))
    return violations


def _final(history: History) -> dict[int, dict[int, str]]:
    return {read.partition: dict(read.records) for read in history.final}


def _reads(history: History) -> Iterator[tuple[str, int, int, str]]:
    """(who, partition, offset, value) of everything that was ever read."""
    for poll in history.polled:
        for offset, value in poll.records:
            yield poll.client, poll.partition, offset, value
    for read in history.final:
        for offset, value in read.records:
            yield "the final read", read.partition, offset, value


def _lost(history: History) -> Iterator[str]:
    final = _final(history)
    earliest = {read.partition: read.earliest for read in history.final}
    for item in history.produced:
        if item.offset is None or item.partition not in final or item.offset < earliest[item.partition]:
            continue
        there = final[item.partition].get(item.offset)
        if there != item.value:
            place = f"{item.partition}/{item.offset}"
            yield f"{item.value} was acknowledged at {place}, where there is {there or 'nothing'}"


def _vanished(history: History) -> Iterator[str]:
    final = _final(history)
    earliest = {read.partition: read.earliest for read in history.final}
    for client, partition, offset, value in _reads(history):
        if partition in final and offset >= earliest[partition] and offset not in final[partition]:
            yield f"{client} read {value} at {partition}/{offset}, which is not there any more"


def _conflict(history: History) -> Iterator[str]:
    known: dict[tuple[int, int], tuple[str, str]] = {}
    for item in history.produced:
        if item.offset is None:
            continue
        value, _ = known.setdefault((item.partition, item.offset), (item.value, "its acknowledgement"))
        if value != item.value:
            yield f"{item.partition}/{item.offset} was acknowledged to {value} and to {item.value}"
    for client, partition, offset, value in _reads(history):
        first, witness = known.setdefault((partition, offset), (value, client))
        if first != value:
            yield f"{partition}/{offset} is {first} by {witness}, and {value} by {client}"


def _duplicate(history: History) -> Iterator[str]:
    places: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for _, partition, offset, value in _reads(history):
        places[value].add((partition, offset))
    for item in history.produced:
        if item.offset is not None:
            places[item.value].add((item.partition, item.offset))
    for value, found in places.items():
        if len(found) > 1 and value.partition(":")[0] in history.idempotent:
            yield f"{value} is at {', '.join(f'{partition}/{offset}' for partition, offset in sorted(found))}"


def _disorder(history: History) -> Iterator[str]:
    found: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
    for item in history.produced:
        if item.offset is not None and item.client in history.idempotent:
            found[item.client, item.partition].add((item.offset, item.number))
    for read in history.final:
        for offset, value in read.records:
            client, _, number = value.partition(":")
            if client in history.idempotent:
                found[client, read.partition].add((offset, int(number)))
    for (client, partition), pairs in found.items():
        for (before, first), (after, second) in pairwise(sorted(pairs)):
            if second < first:
                yield f"{client}:{first} is at {partition}/{before}, {client}:{second} behind it at {after}"


def _phantom(history: History) -> Iterator[str]:
    for client, partition, offset, value in _reads(history):
        sent = history.sent.get(value)
        if sent is None:
            yield f"{client} read {value!r} at {partition}/{offset}, which nobody sent"
        elif sent[0] != partition:
            yield f"{client} read {value} at {partition}/{offset}; it was sent to partition {sent[0]}"


def _gap(history: History) -> Iterator[str]:
    last: dict[tuple[str, int, int], int] = {}
    for poll in history.polled:
        key = (poll.client, poll.session, poll.partition)
        for offset, _ in poll.records:
            if key in last and offset != last[key] + 1:
                yield f"{poll.client} read {poll.partition}/{offset} after {last[key]}"
            last[key] = offset


def _skipped(history: History) -> Iterator[str]:
    read: dict[tuple[str, int], set[int]] = defaultdict(set)
    for poll in history.polled:
        if poll.client in history.groups:
            read[history.groups[poll.client], poll.partition].update(offset for offset, _ in poll.records)
    for (group, partition), offsets in read.items():
        missing = sorted(set(range(min(offsets), max(offsets))) - offsets) if offsets else []
        if missing:
            span = f"{partition}/{min(offsets)}..{max(offsets)}"
            yield f"group {group} read {span} without {len(missing)} of it: {missing[:3]}"


def _forgotten(history: History) -> Iterator[str]:
    """What was committed last counts, even if it is less: librdkafka sends a commit whose coordinator was lost again,
    also after later ones. And a member may hear of its last commits only when the next one is already assigned.
    """
    committed: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    for item in history.committed:
        committed[history.groups[item.client], item.partition].append((item.answered_s, item.offset))
    begun: set[tuple[str, int, int]] = set()
    for poll in history.polled:
        key = (poll.client, poll.session, poll.partition)
        if poll.client not in history.groups or key in begun or not poll.records:
            continue
        begun.add(key)
        group, offset = history.groups[poll.client], poll.records[0][0]
        if (group, poll.partition) not in committed:
            continue
        assigned_s = history.sessions[poll.client, poll.session]
        commits = sorted(committed[group, poll.partition])
        before = [value for answered_s, value in commits if answered_s < assigned_s]
        heard_late = {value for answered_s, value in commits if answered_s >= assigned_s}
        if before and offset < before[-1] and offset not in heard_late:
            yield f"{poll.client} began at {poll.partition}/{offset} after group {group} had committed {before[-1]}"


def _incomplete(history: History) -> Iterator[str]:
    for read in history.final:
        offsets = [offset for offset, _ in read.records]
        if offsets != list(range(read.earliest, read.latest)):
            missing = sorted(set(range(read.earliest, read.latest)) - set(offsets))
            yield (
                f"partition {read.partition} has {read.earliest}..{read.latest}, "
                f"{len(offsets)} records were read, missing {missing[:3]}"
            )


def _backwards(history: History) -> Iterator[str]:
    by_partition: dict[int, list[Asked]] = defaultdict(list)
    for asked in history.asked:
        by_partition[asked.partition].append(asked)
    for read in history.final:  # it came after everything
        by_partition[read.partition].append(
            Asked("the final read", read.partition, float("inf"), float("inf"), read.earliest, read.latest)
        )
    for partition, all_asked in by_partition.items():
        for name in ("earliest", "latest"):
            answers = [
                (asked.asked_s, asked.answered_s, value, asked.client)
                for asked in all_asked
                if (value := getattr(asked, name)) is not None
            ]
            highest = _Highest([(answered_s, value) for _, answered_s, value, _ in answers])
            for asked_s, _, value, client in sorted(answers):
                before = highest.until(asked_s)
                if before is not None and value < before:
                    yield f"{name} of partition {partition} was {before}, then {client} got {value}"
        for asked in all_asked:
            if asked.earliest is not None and asked.latest is not None and asked.earliest > asked.latest:
                yield f"partition {partition}: earliest {asked.earliest} is above latest {asked.latest}"


def _stale(history: History) -> Iterator[str]:
    acknowledged: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for item in history.produced:
        if item.offset is not None:
            acknowledged[item.partition].append((item.ended_s, item.offset))
    highest = {partition: _Highest(pairs) for partition, pairs in acknowledged.items()}
    for asked in history.asked:
        if asked.latest is None or asked.partition not in highest:
            continue
        offset = highest[asked.partition].until(asked.asked_s)
        if offset is not None and asked.latest <= offset:
            yield f"{asked.client} got latest {asked.latest} after {asked.partition}/{offset} was acknowledged"


def _unanswered(history: History) -> Iterator[str]:
    ended = {item.value for item in history.produced}
    for value, (partition, _) in history.sent.items():
        if value not in ended:
            yield f"{value} was sent to partition {partition} and nothing was heard of it"


def _fatal(history: History) -> Iterator[str]:
    for client, error in history.fatal:
        yield f"{client} cannot go on: {error}"


def _promise_5(history: History) -> Iterator[str]:
    """What one connection's answers said, and what is in the log of it in the end.

    A failure may leave open whether the record is in the log, and those sent right behind it with it; so what the log
    must hold of a connection's records is a beginning of them, in order.
    """
    places = {(read.partition, value): offset for read in history.final for offset, value in read.records}
    earliest = {read.partition: read.earliest for read in history.final}
    for run in history.pipelined:
        failed: str | None = None
        absent: str | None = None
        last = -1
        for number, acknowledged in enumerate(run.offsets, run.first_number):
            value = f"{run.client}:{number}"
            if acknowledged is None:
                failed = failed or value
            elif failed is not None:
                yield f"{failed} failed, and {value} was acknowledged after it at {run.partition}/{acknowledged}"
            if run.partition not in earliest:
                continue
            offset = places.get((run.partition, value), acknowledged)
            if offset is None and last < earliest[run.partition] > 0:
                continue  # it may have been there, before where the log starts by now
            if offset is None:
                absent = absent or value
            elif absent is not None:
                yield f"{absent} is not in the log, and {value}, sent behind it, is at {run.partition}/{offset}"
            elif offset <= last:
                yield f"{value} is at {run.partition}/{offset}, before what was sent before it ({last})"
            last = max(last, offset if offset is not None else -1)


class _Highest:
    """The largest value among pairs (time, value) of before some time."""

    def __init__(self, pairs: list[tuple[float, int]]) -> None:
        pairs = sorted(pairs)
        self._times = [at for at, _ in pairs]
        self._values: list[int] = []
        for _, value in pairs:
            self._values.append(value if not self._values else max(value, self._values[-1]))

    def until(self, time_s: float) -> int | None:
        """Strictly before `time_s`."""
        number = bisect_left(self._times, time_s)
        return self._values[number - 1] if number else None


RULES: dict[str, Callable[[History], Iterator[str]]] = {
    "lost": _lost,
    "vanished": _vanished,
    "conflict": _conflict,
    "duplicate": _duplicate,
    "disorder": _disorder,
    "phantom": _phantom,
    "gap": _gap,
    "skipped": _skipped,
    "forgotten": _forgotten,
    "incomplete": _incomplete,
    "backwards": _backwards,
    "stale": _stale,
    "unanswered": _unanswered,
    "fatal": _fatal,
    "promise-5": _promise_5,
}
