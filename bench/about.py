"""Where and with what a run was made: ratios travel between machines, absolute figures do not."""

import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import confluent_kafka

from bench import kafka_server
from bench.arena import Effort
from bench.kept import Unavailable
from tidelog import __version__

ASK_S_MAX = 20.0


def about_this_run(effort: Effort, client: str) -> dict[str, object]:
    return {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{os.cpu_count()} × {_processor()}, {_memory_gb():.0f} GB, Linux {platform.release()}",
        "load": f"{os.getloadavg()[2]:.1f} over the last quarter of an hour",
        # How an interpreter was built decides as much as its version; where it is from tells that apart.
        "tidelog": f"{__version__} on Python {platform.python_version()} of {sys.base_prefix}",
        "kafka": f"{kafka_server.VERSION} on {_java()}, {kafka_server.HEAP} heap a node",
        "librdkafka": confluent_kafka.libversion()[0],
        "client": client,
        "effort": asdict(effort),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _java() -> str:
    try:
        said = subprocess.run([kafka_server.java(), "-version"], capture_output=True, check=False, timeout=ASK_S_MAX)
    except Unavailable:
        return "no Java"
    return said.stderr.decode(errors="replace").splitlines()[0].replace('"', "")
