"""The pipeline's numbers as a file, for whatever an operator scrapes with: `<checkpoint>.pipeline/metrics.json`.

One JSON object, replaced as a whole every `EVERY_S` and at the end, so a reader never sees half of one. It is about now
and not synced: after a crash the commit records count. A reader goes by `written_ms`; `running` is false when the
pipeline has ended by itself. docs/pipeline.md lists the fields.

A disk that refuses it does not hold up delivery: that is logged, once until it works again.
"""

import json
import logging
import os
import time
from pathlib import Path

from tidelog.spark.pipeline.telling import Telling

FORMAT = 1
FILE = "metrics.json"
EVERY_S = 1.0

_log = logging.getLogger(__name__)


class MetricsFile:
    def __init__(self, folder: Path, telling: Telling) -> None:
        self._path = folder / FILE
        self._telling = telling
        self._again_s = 0.0
        self._before: tuple[float, dict[str, int]] | None = None
        self._has_failed = False

    def turn(self, now_s: float) -> None:
        """Now and then; writes when it is time."""
        if now_s >= self._again_s:
            self._again_s = now_s + EVERY_S
            self.write(now_s, running=True)

    def write(self, now_s: float, *, running: bool) -> None:
        content = self._telling.document()
        del content["event"]
        for name, per_s in self._rates(now_s).items():
            content["databases"][name]["events_per_s"] = per_s
        head = {"format": FORMAT, "written_ms": time.time_ns() // 1_000_000, "pid": os.getpid(), "running": running}
        aside = self._path.with_name(f"{FILE}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps({**head, **content}) + "\n")
            aside.replace(self._path)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                _log.warning("%s cannot be written: %s", self._path, error.strerror)
            self._has_failed = True

    def _rates(self, now_s: float) -> dict[str, float]:
        """Events a second since the last time; 0 at first, and when counting began anew."""
        counts = {each.name: each.snapshot.produced + each.binlog.produced for each in self._telling.databases}
        then_s, before = self._before or (now_s, {})
        self._before = (now_s, counts)
        passed_s = now_s - then_s
        if passed_s <= 0:
            return dict.fromkeys(counts, 0.0)
        return {name: round(max(0, count - before.get(name, count)) / passed_s, 1) for name, count in counts.items()}
