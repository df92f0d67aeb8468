"""The folder that a dump is fetched into: which files, how far, and whether it is complete.

A file grows as `<name>.part` and gets its name when it is whole and synced. `fetch.json` beside them says which dump
(the master's uuid) and which files; it says `complete` only when every file and folder is on stable storage. So
whatever stops a fetch, the next one knows what it has:

* another uuid, or another list of files: everything goes, and the fetch starts over;
* the same: whole tables stay, and a table's part is continued, unless the machine went down meanwhile (a part is not
  synced). Everything else is small and fetched again, since two dumps at one position have one uuid and may differ in
  it, while a table's content never changes under its number.

A folder with other things in it is refused, never emptied. Names come from the network and are checked before anything
is made of them.
"""

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.pikiwi.dump.info import INFO_NAME
from tidelog.pikiwi.errors import DumpError

STATE_NAME = "fetch.json"
PART_SUFFIX = ".part"
_DRAFT_NAME = STATE_NAME + PART_SUFFIX
TABLE_SUFFIX = ".sst"
NAME_BYTES_MAX = 255  # of one component
PATH_BYTES_MAX = 1024
DEPTH_MAX = 8


def checked_names(names: Iterable[str], count_max: int) -> list[str]:
    """File names as a master lists them, `info` first; DumpError when one could leave the folder or harm it."""
    listed = list(names)
    if len(listed) > count_max:
        raise DumpError(f"the master lists {len(listed):,} files for a dump, at most {count_max:,} are taken")
    for name in listed:
        if (why := _unfit(name)) is not None:
            raise DumpError(f"the master lists a file that cannot be taken: {name[:100]!r}: {why}")
    distinct = set(listed)
    if len(distinct) != len(listed):
        raise DumpError("the master lists a file twice")
    if INFO_NAME not in distinct:
        raise DumpError(f"the master lists a dump without {INFO_NAME}")
    for name in listed:
        if not distinct.isdisjoint(str(parent) for parent in Path(name).parents):
            raise DumpError(f"the master lists {name[:100]!r} below something that is a file")
    return [INFO_NAME, *sorted(distinct - {INFO_NAME})]


def _unfit(name: str) -> str | None:
    components = name.split("/")
    if len(name.encode(errors="replace")) > PATH_BYTES_MAX or len(components) > DEPTH_MAX:
        return "it is too long"
    if not name.isprintable() or "\\" in name:
        return "it has characters that no file of a dump has"
    if name.startswith("/"):
        return "it is absolute"
    if any(component in ("", ".", "..") for component in components):
        return "it has empty or dot components"
    if any(len(component.encode()) > NAME_BYTES_MAX for component in components):
        return "a component is too long"
    if name == STATE_NAME or name.endswith(PART_SUFFIX):
        return "the name is used here for something else"
    return None


@dataclass(frozen=True, slots=True)
class Held:
    """What is here of a dump that is fetched."""

    complete: bool
    whole_bytes: int  # of files that are whole
    missing: dict[str, int]  # the others, with the bytes that are here


class ReceivedDump:
    """The folder of one dump. Every method may block: call them in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, uuid: str, names: Sequence[str]) -> Held:
        """Make the folder ready for this dump, and say what of it is here."""
        state = _read_state(self.folder)
        if state is None and self.folder.exists() and any(path.name != _DRAFT_NAME for path in self.folder.iterdir()):
            raise DumpError(f"{self.folder} has other things in it than a dump; empty it, or set another dump_path")
        same = state is not None and state.get("uuid") == uuid and state.get("files") == list(names)
        if state is not None and not same:
            self._empty()
        self.folder.mkdir(parents=True, exist_ok=True)
        if same and state is not None and state.get("complete"):
            return Held(True, self._size(names), {})
        parts_hold = state is not None and state.get("boot") == _boot()
        missing = {name: have for name in names if (have := self._held(name, parts_hold)) is not None}
        self._write_state(uuid, names, complete=False)
        return Held(False, self._size(name for name in names if name not in missing), missing)

    def _size(self, names: Iterable[str]) -> int:
        return sum((self.folder / name).stat().st_size for name in names)

    def _held(self, name: str, parts_hold: bool) -> int | None:
        """Bytes of an unfinished file; None when it is whole. What cannot be trusted after an interruption goes."""
        path, part = self.folder / name, self._part(name)
        if name.endswith(TABLE_SUFFIX):
            if path.exists():
                return None
            if parts_hold and part.exists():
                return part.stat().st_size
        path.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
        return 0

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Bytes of a file, at an offset that is not behind what is here."""
        part = self._part(name)
        part.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
        finally:
            os.close(descriptor)

    def finish_file(self, name: str) -> None:
        """The file is whole: onto stable storage, and under its name."""
        part = self._part(name)
        _sync(part)
        part.rename(self.folder / name)

    def complete(self, uuid: str, names: Sequence[str]) -> None:
        """All files are whole; durable when it returns."""
        missing = [name for name in names if not (self.folder / name).is_file()]
        assert not missing, missing
        for folder in {self.folder / parent for name in names for parent in Path(name).parents}:
            _sync(folder)
        self._write_state(uuid, names, complete=True)
        _sync(self.folder.parent)

    def read_info(self) -> bytes:
        return (self.folder / INFO_NAME).read_bytes()

    def _part(self, name: str) -> Path:
        return self.folder / (name + PART_SUFFIX)

    def _write_state(self, uuid: str, names: Sequence[str], *, complete: bool) -> None:
        path = self.folder / STATE_NAME
        draft = self.folder / _DRAFT_NAME
        draft.write_text(json.dumps({"uuid": uuid, "complete": complete, "boot": _boot(), "files": list(names)}))
        _sync(draft)
        draft.rename(path)
        _sync(self.folder)

    def _empty(self) -> None:
        """The state goes last, so that a half emptied folder is still known to be ours."""
        for path in self.folder.iterdir():
            if path.name == STATE_NAME:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        (self.folder / STATE_NAME).unlink()


def require_complete(folder: Path) -> None:
    """A folder that a fetch has not finished with is no dump; one that came another way has no `fetch.json`."""
    state = _read_state(folder)
    if state is not None and not state.get("complete"):
        raise DumpError(f"{folder}: the dump is not fetched completely; let the receiver finish")


def _read_state(folder: Path) -> dict[str, object] | None:
    try:
        state = json.loads((folder / STATE_NAME).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}  # ours, and of no use
    return state if isinstance(state, dict) else {}


def _boot() -> str:
    """Changes whenever the machine starts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
