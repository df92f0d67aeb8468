"""What a benchmark makes once and keeps: Kafka's jars, the compiled client. In `.clients/`, beside the tests' own.

A thing is a folder, named for a hash of what it is made from, so that a change of that makes it anew. It is made under
another name and renamed when it is whole: whoever sees it sees all of it, also when two make it at once.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Unavailable(Exception):
    """Something cannot be had on this machine; the message says what is missing, and what to do."""


def kept(name: str, made_from: bytes, make: Callable[[Path], None]) -> Path:
    """The folder `name`, filled by `make` unless it is there already."""
    shelf = Path(os.environ.get("TIDELOG_CLIENTS_DIR", ROOT / ".clients"))
    shelf.mkdir(parents=True, exist_ok=True)
    (shelf / ".gitignore").write_text("*\n")
    folder = shelf / f"{name}-{hashlib.sha256(made_from).hexdigest()[:12]}"
    if folder.exists():
        return folder
    making = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=shelf))
    try:
        make(making)
        with suppress(OSError):  # somebody else was faster, with the same
            making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder
