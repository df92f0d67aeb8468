"""Whole keys out of ranges, for comparing: parts are put together and checked to follow one another."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidelog.pikiwi.dump import DumpRange, plan, read_keys

FIXTURES = Path(__file__).parent / "fixtures"
NOW_MS = 1_794_770_500_000  # when the recorded dumps were made, nearly

Whole = dict[tuple[str, bytes], tuple[int, list[Any]]]
"""Expiry and elements by type and key."""


def whole_keys(ranges: Iterable[DumpRange]) -> Whole:
    found: Whole = {}
    for each in ranges:
        part_next, name = 0, None
        for part in read_keys(each):
            key = (part.data_type, part.key)
            assert part.part == part_next, "parts of a key follow one another"
            assert name in (None, key), "a key ends before the next one begins"
            assert (key in found) == (part.part > 0), "a key comes once"
            assert 0 < len(part.elements) <= each.batch_num
            found.setdefault(key, (part.expire_ms, []))[1].extend(part.elements)
            part_next, name = (0, None) if part.last else (part.part + 1, key)
        assert name is None, "the last key has a last part"
    return found


def read_all(folder: Path, **options: Any) -> Whole:
    return whole_keys(plan(folder, **{"now_ms": NOW_MS, **options}))
