"""A folder for one benchmark, on the disk that is measured."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def scratch() -> Iterator[str]:
    """Beside the working directory, not on a RAM disk; gone afterwards."""
    path = tempfile.mkdtemp(prefix=".bench-", dir=os.environ.get("TIDELOG_BENCH_DIR", "."))
    try:
        yield os.path.abspath(path)
    finally:
        shutil.rmtree(path)
