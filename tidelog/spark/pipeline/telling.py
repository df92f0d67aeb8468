"""What a pipeline tells about itself: numbers that its threads write and the progress line, JSON and warnings read."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tidelog.pikiwi.position import Position

WARN_INTERVAL_S = 60.0

Phase = Literal["waiting", "snapshot", "binlog", "retrying", "stopped"]


@dataclass
class DatabaseTelling:
    """One database. Written by its own thread, field by field; read at any time."""

    name: str
    phase: Phase = "waiting"
    detail: str = ""
    delivered: Position | None = None  # AckCP
    delivered_seq: int = 0
    durable_seq: int = 0
    binlog_events: int = 0
    """Rows in the topic since the generation began; a broadcast event counts once a partition."""
    snapshot_events: int = 0
    ranges_done: int = 0
    ranges_total: int = 0
    generation: int = 0
    failures: int = 0
    moved_s: float = field(default_factory=time.monotonic)
    """When there was last nothing to deliver, or some of it was delivered."""

    @property
    def to_deliver(self) -> int:
        return max(0, self.durable_seq - self.delivered_seq)

    def line(self) -> str:
        parts = [f"{self.name} {self.phase}"]
        if self.detail:
            parts.append(self.detail)
        if self.phase == "snapshot":
            parts.append(f"{self.ranges_done}/{self.ranges_total} ranges, {self.snapshot_events:,} events")
        if self.phase in ("binlog", "retrying") and self.delivered is not None:
            behind = "up to date" if not self.to_deliver else f"{self.to_deliver:,} items to deliver"
            parts.append(f"delivered {self.delivered}, {self.binlog_events:,} events, {behind}")
        return ", ".join(parts)

    def document(self) -> dict[str, Any]:
        content = asdict(self)
        del content["moved_s"]
        return {**content, "delivered": None if self.delivered is None else str(self.delivered)}


class Telling:
    def __init__(self, source_id: str) -> None:
        self.source_id = source_id
        self._databases: dict[str, DatabaseTelling] = {}
        self._lock = threading.Lock()
        self._warned_s: dict[str, float] = {}

    def database(self, name: str) -> DatabaseTelling:
        with self._lock:
            return self._databases.setdefault(name, DatabaseTelling(name))

    def line(self) -> str:
        return " · ".join(each.line() for each in self._each()) or "waiting for the receiver"

    def document(self) -> dict[str, Any]:
        databases = {each.name: each.document() for each in self._each()}
        return {"event": "pipeline", "source_id": self.source_id, "databases": databases}

    def warn_if_late(self, limit_s: int, warn: Callable[[str], None], now_s: float) -> None:
        """A database that has something to deliver and has not got on for long is worth a warning, now and then."""
        for each in self._each():
            late_s = now_s - each.moved_s
            if not limit_s or each.phase == "waiting" or not each.to_deliver or late_s <= limit_s:
                continue
            if now_s - self._warned_s.get(each.name, -WARN_INTERVAL_S) >= WARN_INTERVAL_S:
                self._warned_s[each.name] = now_s
                warn(
                    f"{self.source_id} {each.name}: nothing was delivered for {late_s:.0f} s and {each.to_deliver:,} "
                    f"items wait, from {each.delivered} on: is the cluster slow?"
                )

    def _each(self) -> list[DatabaseTelling]:
        with self._lock:
            return sorted(self._databases.values(), key=lambda each: each.name)
