"""A RocksDB database of a dump, opened read-only, as often and by as many processes as wanted.

Column families in bytewise order are read by RocksDB itself (rocksdict), those with PikiwiDB's own comparator by
`tidelog.pikiwi.dump.rocks`. The dump is not touched: rocksdict leaves a file of its own where it opens a database, so
it opens a scratch folder of symbolic links. Reading ends in an error, never early: rocksdict's `items()` stops silently
at a damaged block, so iterators are used and their status asked.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rocksdict import AccessType, Options, Rdict, ReadOptions

from tidelog.pikiwi.dump.rocks import BYTEWISE, ColumnFamilyRows, read_manifest
from tidelog.pikiwi.errors import DumpError

OPEN_FILES_MAX = 256  # per database; RocksDB would hold every table open
_DEFAULT = "default"
_NAMES = ("CURRENT", "MANIFEST-", "OPTIONS-")  # what a checkpoint consists of, and these:
_SUFFIXES = (".sst", ".log")


class Database:
    """Use as a context manager: the scratch folder goes with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._families = read_manifest(folder)
        self._others: dict[str, ColumnFamilyRows] = {}
        self._scratch = tempfile.mkdtemp(prefix="tidelog-dump-")
        try:
            for path in folder.iterdir():
                if path.name.startswith(_NAMES) or path.suffix in _SUFFIXES:
                    os.symlink(path.resolve(), os.path.join(self._scratch, path.name))
            self._rocks = self._open()
            self._bytewise = {
                name: self._rocks if name == _DEFAULT else self._rocks.get_column_family(name)
                for name in self._bytewise_names()
            }
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def __enter__(self) -> "Database":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for rows in self._others.values():
            rows.close()
        for family in self._bytewise.values():
            if family is not self._rocks:
                family.close()
        self._bytewise.clear()
        with suppress(Exception):  # nothing was written, so there is nothing to lose
            self._rocks.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def get(self, key: bytes) -> bytes | None:
        """A row of the family `default`."""
        try:
            return self._rocks.get(key)
        except Exception as error:  # rocksdict raises nothing narrower
            raise self._failed(error, _DEFAULT) from error

    def first(self, prefix: bytes) -> bytes | None:
        """The value of the first row of `default` whose key begins with a prefix."""
        for key, value in self.scan(_DEFAULT, prefix):
            return value if key.startswith(prefix) else None
        return None

    def scan(
        self, family: str, lower: bytes | None = None, upper: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Row keys and values of a family from `lower` (inclusive) to `upper` (exclusive), in its order."""
        if family not in self._families:
            raise DumpError(f"{self.folder} has no column family {family}; it has {', '.join(self._families)}")
        if family in self._bytewise:
            return self._scan_bytewise(family, lower, upper)
        if family not in self._others:
            self._others[family] = ColumnFamilyRows(self.folder, self._families[family])
        return self._others[family].scan(lower, upper)

    def _scan_bytewise(self, family: str, lower: bytes | None, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        options.fill_cache(False)  # pyright: ignore[reportCallIssue]  (its stub forgets the argument)
        if upper is not None:
            options.set_iterate_upper_bound(upper)
        try:
            rows = self._bytewise[family].iter(options)
            if lower is None:
                rows.seek_to_first()
            else:
                rows.seek(lower)
            valid, key, value, following = rows.valid, rows.key, rows.value, rows.next
            while valid():
                yield key(), value()
                following()
            rows.status()
        except Exception as error:  # rocksdict raises nothing narrower
            raise self._failed(error, family) from error

    def _bytewise_names(self) -> list[str]:
        return [name for name, family in self._families.items() if family.comparator == BYTEWISE]

    def _open(self) -> Rdict:
        names = self._bytewise_names()
        options = Options(raw_mode=True)
        options.set_max_open_files(OPEN_FILES_MAX)
        try:
            return Rdict(
                self._scratch,
                options,
                column_families={name: Options(raw_mode=True) for name in names},
                access_type=AccessType.read_only(),
            )
        except Exception as error:  # rocksdict raises nothing narrower
            raise self._failed(error, ", ".join(names)) from error

    def _failed(self, error: Exception, family: str) -> DumpError:
        said = str(error).replace(self._scratch, str(self.folder))
        return DumpError(f"{self.folder} ({family}): RocksDB says: {said}; fetch the dump again")
