"""Chunks compressed and encrypted, and what happens to those who touch them."""

from pathlib import Path
from uuid import UUID

import pytest

from tidelog.tier.errors import LayoutError, ObjectDamagedError, TierError, UnknownKeyError
from tidelog.tier.sealing import KeyRing, Seal

SEGMENT, OTHER = UUID(int=1), UUID(int=2)
RING = KeyRing({"new": bytes(range(32)), "old": bytes(32)})
DATA = b"all work and no play " * 500


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("ring", [None, RING])
def test_a_chunk_comes_back_as_it_was(compress: bool, ring: KeyRing | None) -> None:
    seal = Seal.new(SEGMENT, compress=compress, ring=ring)
    closed = seal.close_chunk(3, DATA)
    again = Seal.open(SEGMENT, seal.header, ring)
    assert again.open_chunk(3, closed, len(DATA)) == DATA
    assert again.plain == (not compress and ring is None)
    if compress:
        assert len(closed) < len(DATA) / 2
    if ring is not None:
        assert b"all work" not in bytes(closed)


def test_two_segments_never_share_a_key() -> None:
    a, b = (Seal.new(SEGMENT, compress=False, ring=RING) for _ in range(2))
    assert a.close_chunk(0, DATA) != b.close_chunk(0, DATA)


@pytest.mark.parametrize(
    ("segment", "number", "flip"), [(OTHER, 0, None), (SEGMENT, 1, None), (SEGMENT, 0, 0), (SEGMENT, 0, -1)]
)
def test_a_chunk_that_was_changed_or_moved_is_refused(segment: UUID, number: int, flip: int | None) -> None:
    seal = Seal.new(SEGMENT, compress=False, ring=RING)
    closed = bytearray(seal.close_chunk(0, DATA))
    if flip is not None:
        closed[flip] ^= 1
    with pytest.raises(ObjectDamagedError):
        Seal.open(segment, seal.header, RING).open_chunk(number, bytes(closed), len(DATA))


def test_a_key_that_was_rotated_out_of_first_place_still_opens() -> None:
    seal = Seal.new(SEGMENT, compress=False, ring=KeyRing({"old": bytes(32)}))
    assert Seal.open(SEGMENT, seal.header, RING).open_chunk(0, seal.close_chunk(0, DATA), len(DATA)) == DATA


def test_a_missing_key_is_named() -> None:
    seal = Seal.new(SEGMENT, compress=False, ring=RING)
    for ring in (None, KeyRing({"old": bytes(32)})):
        with pytest.raises(UnknownKeyError, match="'new'"):
            Seal.open(SEGMENT, seal.header, ring)


def test_another_key_of_the_same_name_is_noticed() -> None:
    seal = Seal.new(SEGMENT, compress=False, ring=RING)
    with pytest.raises(ObjectDamagedError):
        Seal.open(SEGMENT, seal.header, KeyRing({"new": bytes(32)}))


@pytest.mark.parametrize("header", [b"", b"\x01", b"\x02\x00", b"\x01\x08", b"\x01\x02\x03new"])
def test_a_seal_of_an_unknown_form_is_refused(header: bytes) -> None:
    with pytest.raises(LayoutError):
        Seal.open(SEGMENT, header, RING)


def test_a_compressed_chunk_that_is_larger_than_it_should_be_is_refused() -> None:
    seal = Seal.new(SEGMENT, compress=True, ring=None)
    with pytest.raises(ObjectDamagedError):
        seal.open_chunk(0, seal.close_chunk(0, DATA), len(DATA) - 1)


def test_a_key_ring_is_a_file_of_names_and_hex(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_text(f"# keys\n2026 {bytes(range(32)).hex()}\n2025 {bytes(32).hex()}  # old\n")
    ring = KeyRing.load(str(path))
    assert ring.active == "2026"
    assert ring.keys["2025"] == bytes(32)


@pytest.mark.parametrize("text", ["", "a 00", "a", "a zz", f"{'n' * 65} {bytes(32).hex()}"])
def test_a_key_ring_that_is_wrong_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ring"
    path.write_text(text)
    with pytest.raises(TierError):
        KeyRing.load(str(path))


def test_a_key_ring_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="nowhere"):
        KeyRing.load(str(tmp_path / "nowhere"))
