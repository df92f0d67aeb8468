"""History from the object store: the rows of a broker's read, never one less and never one twice."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tier.s3 import BUCKET, s3_options, s3_server
from tidelog.spark.errors import BadOption, DataLost
from tidelog.spark.fetch import Run
from tidelog.spark.kernel.decode import RECORD_SCHEMA, Place, decode_records
from tidelog.spark.kernel.options import TierOptions
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.spark.tier_history import History
from tidelog.spark.tier_plan import Holding, StoredRun, cut, runs_of
from tidelog.spark.tier_read import AHEAD, TierOrigin
from tidelog.spark.tier_store import HistoryFailed, opened
from tidelog.tier.layout import INDEXES, LOG
from tidelog.tier.sealing import KeyRing

from .tier_world import Brokers, Bucket, batches, cut_into, next_offset

RING = KeyRing({"k": bytes(32)})


def offsets_from(start: int, end: int) -> OffsetRange:
    return OffsetRange("t", 0, start, end)


def look(history: History, brokers: Brokers, wanted: OffsetRange) -> Holding:
    return history.holdings(brokers, [wanted]).get(("t", 0), Holding(0, ()))  # type: ignore[arg-type]


def read(
    bucket: Bucket, brokers: Brokers, wanted: OffsetRange, runs: Iterable[StoredRun], ring: KeyRing | None = None
) -> list[int]:
    return list(offsets_of(TierOrigin(bucket.store, ring, tuple(runs), brokers).runs(wanted)))


def offsets_of(runs: Iterable[Run]) -> Iterator[int]:
    """A record's value tells its offset too."""
    for run in runs:
        for rows in decode_records(run.data, Place("t", 0, run.start, run.end), RECORD_SCHEMA):
            for row in rows.to_pylist():
                assert int(row["value"].split(b" ")[0]) == row["offset"]
                yield row["offset"]


@pytest.fixture
def ring_file(tmp_path: Path) -> Path:
    file = tmp_path / "ring"
    file.write_text(f"k {bytes(32).hex()}\n")
    return file


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_is_stored_and_vanishes_every_offset_is_read_once(tmp_path_factory: Any, data: st.DataObject):
    made = batches(data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=12)))
    folder = tmp_path_factory.mktemp("tier")
    (folder / "ring").write_text(f"k {bytes(32).hex()}\n")
    bucket, brokers = Bucket(folder), Brokers(made)
    compress, ring = data.draw(st.booleans(), "compress"), data.draw(st.sampled_from([None, RING]))
    for segment in cut_into(made, data.draw(st.lists(st.integers(0, len(made)), max_size=3))):
        if data.draw(st.booleans(), "in the store"):
            every, chunk_bytes = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([50, 300, 5_000]))
            bucket.put(segment, every=every, chunk_bytes=chunk_bytes, compress=compress, ring=ring)
    bucket.describe()
    start, end = sorted(data.draw(st.lists(st.integers(0, next_offset(made[-1])), min_size=2, max_size=2, unique=True)))
    wanted = offsets_from(start, end)
    holding = look(History(bucket.tier(folder / "ring")), brokers, wanted)
    parts = cut(wanted, holding, data.draw(st.sampled_from([100, 500, 1 << 20])))
    assert [part.start for part in parts] == [start, *(part.end for part in parts[:-1])]
    assert parts[-1].end == end
    piece_bytes = data.draw(st.sampled_from([1, 200, 1 << 20]))
    plan = [(part, runs_of(part, holding, piece_bytes)) for part in parts]
    for segment in bucket.segments:
        if data.draw(st.booleans(), "vanishes"):
            bucket.remove(segment)
    found = [offset for part, runs in plan for offset in read(bucket, brokers, part, runs, ring)]
    assert found == list(range(start, end))


def test_what_is_stored_is_not_asked_of_brokers(tmp_path: Path):
    made = batches([5] * 20)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    bucket.put(made[:8])
    bucket.put(made[8:15])
    bucket.describe()
    wanted = offsets_from(3, 90)
    runs = runs_of(wanted, look(History(bucket.tier()), brokers, wanted))
    assert read(bucket, brokers, wanted, runs) == list(range(3, 90))
    assert brokers.asked == [(75, 90)]


def test_a_segment_is_cut_into_ranges_of_bounded_size(tmp_path: Path):
    made = batches([5] * 40)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    bucket.put(made[:30])
    bucket.describe()
    wanted, bound = offsets_from(0, 200), 3 * len(made[0])
    parts = cut(wanted, look(History(bucket.tier()), brokers, wanted), bound)
    assert [(part.start, part.end) for part in parts] == [*((at, at + 15) for at in range(0, 150, 15)), (150, 200)]


def test_small_segments_are_read_together(tmp_path: Path):
    made = batches([5] * 40)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    for at in (0, 2, 4, 6, 8, 12, 20):  # 8 to 10 is missing
        bucket.put(made[at : at + (10 if at == 20 else 4 if at == 12 else 2)])
    bucket.segments = [each for each in bucket.segments if each.base_offset != 40]
    bucket.describe()
    wanted, bound = offsets_from(0, 200), 5 * len(made[0])
    parts = cut(wanted, look(History(bucket.tier()), brokers, wanted), bound)
    found = [(part.start, part.end) for part in parts]
    assert found == [(0, 20), (20, 40), (40, 60), (60, 80), (80, 100), (100, 125), (125, 150), (150, 200)]


@pytest.mark.parametrize(("batches_a_part", "expected"), [(20, [(0, 100)]), (19, [(0, 80), (80, 100)])])
def test_what_brokers_have_behind_the_store_is_a_part_of_its_own_unless_it_is_small(
    tmp_path: Path, batches_a_part: int, expected: list[tuple[int, int]]
):
    made = batches([5] * 20)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    bucket.put(made[:16])
    bucket.describe()
    wanted, bound = offsets_from(0, 100), batches_a_part * len(made[0])
    holding = look(History(bucket.tier()), brokers, wanted)
    parts = cut(wanted, holding, bound)
    assert [(part.start, part.end) for part in parts] == expected
    offsets = [offset for part in parts for offset in read(bucket, brokers, part, runs_of(part, holding))]
    assert offsets == list(range(100))


def test_offsets_before_the_log_start_are_left_to_the_brokers(tmp_path: Path):
    """They may still lie in the store, but are deleted."""
    made = batches([5] * 4)
    bucket, brokers = Bucket(tmp_path), Brokers(made, earliest_offset=8)
    bucket.put(made)
    bucket.describe()
    wanted = offsets_from(0, 20)
    runs = runs_of(wanted, look(History(bucket.tier()), brokers, wanted))
    assert [(run.start, run.end) for run in runs] == [(8, 20)]
    with pytest.raises(DataLost, match="offset 0 is gone"):
        read(bucket, brokers, wanted, runs)


def test_a_segment_that_vanishes_while_it_is_read_is_read_on_from_brokers(tmp_path: Path):
    made = batches([5] * 10)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    first, second = bucket.put(made[:8]), bucket.put(made[8:])
    bucket.describe()
    wanted = offsets_from(0, 50)
    runs = runs_of(wanted, look(History(bucket.tier()), brokers, wanted), piece_bytes=1)
    reading = offsets_of(TierOrigin(bucket.store, None, runs, brokers).runs(wanted))
    found = [next(reading)]
    bucket.remove(first)
    bucket.remove(second)
    assert [*found, *reading] == list(range(50))
    [(at, until), *rest] = brokers.asked
    assert 5 <= at <= 5 * (AHEAD + 2), "what was on its way still counts"
    assert (until, rest) == (40, [(40, 50)])


def test_a_segment_that_the_manifest_still_names_is_left_to_the_brokers(tmp_path: Path):
    made = batches([5] * 4)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    gone = bucket.put(made[:2])
    bucket.put(made[2:])
    bucket.describe()
    bucket.remove(gone)
    wanted = offsets_from(0, 20)
    assert [each.start for each in look(History(bucket.tier()), brokers, wanted).segments] == [10]


def test_the_store_may_be_s3(tmp_path: Path):
    made = batches([5] * 4)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    bucket.put(made, compress=True)
    bucket.describe()
    with s3_server() as port:
        tier = TierOptions(f"s3://{BUCKET}/some/prefix", s3_options(port), None, 1 << 20)
        bucket.copy_to(opened(tier))
        wanted = offsets_from(0, 20)
        runs = runs_of(wanted, look(History(tier), brokers, wanted))
        bucket.store = opened(tier)
        assert read(bucket, brokers, wanted, runs) == list(range(20))
    assert not brokers.asked


def test_a_segment_that_brokers_lack_too_is_data_lost(tmp_path: Path):
    made = batches([5] * 4)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    segment = bucket.put(made)
    bucket.describe()
    wanted = offsets_from(0, 20)
    runs = runs_of(wanted, look(History(bucket.tier()), brokers, wanted))
    bucket.remove(segment)
    brokers.earliest_offset = 20
    with pytest.raises(DataLost, match="offset 0 is gone"):
        read(bucket, brokers, wanted, runs)


def test_another_topic_of_the_same_name_is_not_read(tmp_path: Path):
    made = batches([5] * 4)
    bucket = Bucket(tmp_path)
    bucket.put(made)
    bucket.describe()
    history, wanted = History(bucket.tier()), offsets_from(0, 20)
    assert look(history, Brokers(made), wanted).segments
    assert not look(history, Brokers(made, topic_id=UUID(int=8)), wanted).segments
    bucket.describe(cluster_id="another cluster")
    assert not look(History(bucket.tier()), Brokers(made), wanted).segments


def test_a_stream_that_has_caught_up_stays_with_the_brokers(tmp_path: Path):
    made = batches([5] * 6)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    history = History(bucket.tier())
    bucket.put(made[:2])
    bucket.describe()
    assert len(look(history, brokers, offsets_from(0, 8)).segments) == 1
    bucket.put(made[2:4])
    bucket.describe()
    assert [each.start for each in look(history, brokers, offsets_from(8, 20)).segments] == [0], "not looked at again"
    assert [each.start for each in look(history, brokers, offsets_from(10, 20)).segments] == [10], "looked at again"
    assert not look(history, brokers, offsets_from(20, 30)).segments
    bucket.put(made[4:])
    bucket.describe()
    assert not look(history, brokers, offsets_from(20, 30)).segments, "it has caught up"


def test_what_is_damaged_is_an_error_and_not_a_gap(tmp_path: Path):
    made = batches([5] * 6)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    segment = bucket.put(made)
    bucket.describe()
    wanted = offsets_from(0, 30)
    runs = runs_of(wanted, look(History(bucket.tier()), brokers, wanted))
    file = bucket.file(segment, LOG)
    file.write_bytes(b"".join([*made[:2], *made[3:], made[2]]))  # every batch is intact
    with pytest.raises(HistoryFailed, match=r"t-0, offset 0: .*no batch where offset 10 should begin"):
        read(bucket, brokers, wanted, runs)
    sealed = bucket.put(made, compress=True)
    bucket.segments = [sealed]
    bucket.describe()
    runs = runs_of(wanted, look(History(bucket.tier()), brokers, wanted))
    file = bucket.file(sealed, LOG)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(HistoryFailed, match="its checksum does not fit"):
        read(bucket, brokers, wanted, runs)
    bucket.file(sealed, INDEXES).write_bytes(b"nothing")
    with pytest.raises(HistoryFailed, match=r"not whole and intact.*leave tier\.path out"):
        look(History(bucket.tier()), brokers, wanted)
    assert not brokers.asked


def test_a_key_that_is_lacking_is_told_before_anything_is_read(tmp_path: Path, ring_file: Path):
    made = batches([5] * 4)
    bucket, brokers = Bucket(tmp_path), Brokers(made)
    bucket.put(made, ring=RING)
    bucket.describe()
    assert look(History(bucket.tier(ring_file)), brokers, offsets_from(0, 20)).segments
    with pytest.raises(HistoryFailed, match="encrypted under key 'k', which the key ring lacks"):
        look(History(bucket.tier()), brokers, offsets_from(0, 20))
    with pytest.raises(BadOption, match=r"tier\.keyRing: .*cannot be read"):
        History(bucket.tier(tmp_path / "nowhere"))


@pytest.mark.parametrize("url", ["file:///no/such/folder", "ftp://somewhere", "s3://"])
def test_a_store_that_cannot_be_is_refused(url: str):
    with pytest.raises(BadOption, match=r"tier\.path"):
        opened(TierOptions(url, {}, None, 1))
    assert not Path("/no").exists()
