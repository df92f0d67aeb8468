"""Which storage layout a dump has, told from its folders."""

from pathlib import Path

from tidelog.pikiwi.dump.blackwidow import PLACES, Blackwidow
from tidelog.pikiwi.dump.floyd import Floyd
from tidelog.pikiwi.dump.layout import Layout
from tidelog.pikiwi.errors import DumpError

_LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (Floyd(), Blackwidow())}


def layout_named(name: str) -> Layout:
    return _LAYOUTS[name]


def layout_of(folder: Path) -> Layout:
    """4.x has numbered folders, 3.5 one a type."""
    if not folder.is_dir():
        raise DumpError(f"{folder} is no folder with a dump")
    folders = {path.name for path in folder.iterdir() if path.is_dir()}
    if any(name.isdecimal() for name in folders):
        return _LAYOUTS[Floyd.name]
    if folders & {place.database for place in PLACES.values()}:
        return _LAYOUTS[Blackwidow.name]
    raise DumpError(
        f"{folder} is no dump: it has neither numbered folders (4.x) nor strings, hashes, … (3.5); give the "
        "folder that holds the dump's info file"
    )
