"""What a pipeline tells about itself: its threads write numbers; progress lines, metrics and warnings read them."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tidelog.pikiwi.position import Position

WARN_INTERVAL_S = 60.0

Phase = Literal["waiting", "snapshot", "binlog", "retrying", "stopped"]


@dataclass
class Counts:
    """What became of a dump's commands or a binlog's items, as far as the sink's commit record goes."""

    produced: int = 0
    """Events in the topic; one that goes to every partition counts once each."""
    filtered: int = 0
    dead_letters: int = 0

    @property
    def done(self) -> int:
        return self.produced + self.filtered + self.dead_letters


@dataclass
class DatabaseTelling:
    """One database. Written by its own thread, field by field; read at any time."""

    name: str
    phase: Phase = "waiting"
    detail: str = ""
    delivered: Position | None = None  # AckCP
    delivered_seq: int = 0
    durable_seq: int = 0
    binlog: Counts = field(default_factory=Counts)
    """Since the generation began; so is the next."""
    snapshot: Counts = field(default_factory=Counts)
    ranges_done: int = 0
    ranges_total: int = 0
    generation: int = 0
    failures: int = 0
    moved_s: float = field(default_factory=time.monotonic)
    """When there was last nothing to deliver, or some of it was delivered."""

    @property
    def to_deliver(self) -> int:
        return max(0, self.durable_seq - self.delivered_seq)

    @property
    def is_behind(self) -> bool:
        """Whether there is something that should be delivered now."""
        return self.phase == "snapshot" or (self.phase != "waiting" and self.to_deliver > 0)

    @property
    def where(self) -> str:
        """Up to where everything is delivered."""
        if self.ranges_done < self.ranges_total:
            return f"range {self.ranges_done} of {self.ranges_total} of the dump at {self.delivered}"
        return "the beginning" if self.delivered is None else str(self.delivered)

    def ack_delay_s(self, now_s: float) -> float:
        """For how long nothing was delivered although something waits."""
        return max(0.0, now_s - self.moved_s) if self.is_behind else 0.0

    def line(self) -> str:
        parts = [f"{self.name} {self.phase}"]
        if self.detail:
            parts.append(self.detail)
        if self.phase == "snapshot":
            held = self.snapshot
            parts.append(f"{self.ranges_done}/{self.ranges_total} ranges, read {held.done:,}")
            parts.append(f"produced {held.produced:,}, filtered {held.filtered:,}")
        if self.phase in ("binlog", "retrying") and self.delivered is not None:
            behind = "up to date" if not self.to_deliver else f"{self.to_deliver:,} items to deliver"
            parts.append(f"delivered {self.delivered}, {self.binlog.produced:,} events, {behind}")
        return ", ".join(parts)


class Telling:
    def __init__(self, source_id: str) -> None:
        self.source_id = source_id
        self._databases: dict[str, DatabaseTelling] = {}
        self._lock = threading.Lock()
        self._warned_s: dict[str, float] = {}

    def database(self, name: str) -> DatabaseTelling:
        with self._lock:
            return self._databases.setdefault(name, DatabaseTelling(name))

    @property
    def databases(self) -> list[DatabaseTelling]:
        with self._lock:
            return sorted(self._databases.values(), key=lambda each: each.name)

    def line(self) -> str:
        return " · ".join(each.line() for each in self.databases) or "waiting for the receiver"

    def document(self) -> dict[str, Any]:
        databases = {each.name: _document(each, time.monotonic()) for each in self.databases}
        return {"event": "pipeline", "source_id": self.source_id, "databases": databases}

    def warn_if_late(self, limit_s: int, warn: Callable[[str], None], now_s: float) -> None:
        """A database that has something to deliver and has not got on for long is worth a warning, now and then."""
        for each in self.databases:
            late_s = each.ack_delay_s(now_s)
            if not limit_s or late_s <= limit_s:
                continue
            if now_s - self._warned_s.get(each.name, -WARN_INTERVAL_S) >= WARN_INTERVAL_S:
                self._warned_s[each.name] = now_s
                what = "ranges of the dump" if each.phase == "snapshot" else f"{each.to_deliver:,} items"
                warn(
                    f"{self.source_id} {each.name}: nothing was delivered for {late_s:.0f} s and {what} wait, from "
                    f"{each.where} on: is the cluster slow?"
                )


def _document(each: DatabaseTelling, now_s: float) -> dict[str, Any]:
    snapshot, binlog = each.snapshot, each.binlog
    return {
        "phase": each.phase,
        "detail": each.detail,
        "generation": each.generation,
        "failures": each.failures,
        "ack_delay_s": round(each.ack_delay_s(now_s), 1),
        "snapshot": {
            "ranges_total": each.ranges_total,
            "ranges_done": each.ranges_done,
            "read": snapshot.done,
            "produced": snapshot.produced,
            "filtered": snapshot.filtered,
            "dead_letters": snapshot.dead_letters,
            "snapshot_seq": snapshot.done,
        },
        "binlog": {
            "durable_seq": each.durable_seq,
            "ack_seq": each.delivered_seq,
            "ack_position": None if each.delivered is None else str(each.delivered),
            "to_deliver": each.to_deliver,
            "produced": binlog.produced,
            "filtered": binlog.filtered,
            "dead_letters": binlog.dead_letters,
        },
    }
