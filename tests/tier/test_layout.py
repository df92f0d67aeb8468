"""Names, index objects and manifests; and what of a local segment goes into them."""

import json
from uuid import UUID

import pytest
from crc32c import crc32c

from tests.tier.segments import LocalLog, remote
from tidelog.raft.log import EntryKind
from tidelog.storage import StorageSettings
from tidelog.tier.errors import LayoutError, ObjectDamagedError
from tidelog.tier.image import INDEX_INTERVAL_BYTES, SegmentImage, image_of
from tidelog.tier.layout import (
    INDEXES,
    LOG,
    ChunkRow,
    ObjectName,
    PackedIndex,
    StreamManifest,
    StreamPlace,
    about_segment,
    encode_offset_row,
    encode_time_row,
    id_of,
    id_text,
    segment_of,
    segment_text,
    topic_of_folder,
)
from tidelog.tier.metadata import SegmentState
from tidelog.wire.batch import check_batch, split_batches

TOPIC_ID = UUID("b64f1c6f-9d0c-4c5b-8a57-6f0d8a3e2c11")
PLACE = StreamPlace("orders-eu", TOPIC_ID, 3)
ROOMY = StorageSettings(segment_bytes=4 << 20, rows_bytes=1 << 20, staging_bytes=1 << 20)


def test_names_say_topic_id_partition_offset_segment_and_kind() -> None:
    segment = remote(1_005, 2_000)
    name = PLACE.object_name(segment, LOG)
    assert name == f"orders-eu-{id_text(TOPIC_ID)}/3/00000000000000001005-{id_text(segment.id)}.log"
    parsed = ObjectName.parse("prefix/" + name)
    assert parsed == ObjectName(1_005, segment.id, LOG)
    assert StreamPlace.of_folder("some/prefix/" + PLACE.folder) == PLACE
    assert topic_of_folder(PLACE.topic_folder) == ("orders-eu", TOPIC_ID)


@pytest.mark.parametrize("bits", [0, 2**128 - 1, 0xFBEFBE << 100])
def test_ids_with_dashes_in_them_are_found_in_names(bits: int) -> None:
    id_ = UUID(int=bits)
    assert id_of(id_text(id_)) == id_
    place = StreamPlace("a-b-", id_, 0)
    assert topic_of_folder(place.topic_folder) == ("a-b-", id_)
    assert ObjectName.parse(place.object_name(remote(0, 1), INDEXES)) is not None


@pytest.mark.parametrize("name", ["manifest.json", "x.log", "0" * 20 + "-short.log", "0" * 43 + ".log", "a/b"])
def test_other_objects_are_not_taken_for_segments(name: str) -> None:
    assert ObjectName.parse(name) is None


@pytest.mark.parametrize("folder", ["x", "topic/0", "topic-short/0", f"t-{'A' * 22}/x"])
def test_other_folders_are_not_taken_for_streams(folder: str) -> None:
    with pytest.raises(LayoutError):
        StreamPlace.of_folder(folder)


def index_of(rows: list[tuple[int, int, int]], size: int = 1_000, base: int = 100) -> PackedIndex:
    """Rows are (offset delta, position, newest time)."""
    return PackedIndex(
        base, size, b"".join(encode_offset_row(delta, position) for delta, position, _ in rows),
        b"".join(encode_time_row(time, delta) for delta, _, time in rows), b"producers", ((1, base), (4, base + 7)),
        400, (ChunkRow(0, 300, 7), ChunkRow(300, 410, 8), ChunkRow(710, 90, 9)), b"\x01\x00",
        about_segment(PLACE, remote(base, base + 50)),
    )  # fmt: skip


def test_an_index_comes_back_as_it_was() -> None:
    index = index_of([(0, 0, 5), (10, 300, 9)])
    again = PackedIndex.decode(index.encode())
    assert again.encode() == index.encode()
    assert (again.offsets, again.times, again.producers) == (index.offsets, index.times, b"producers")
    assert again.epochs == ((1, 100), (4, 107))
    assert again.chunks == index.chunks
    assert [again.chunk_size(number) for number in range(3)] == [400, 400, 200]
    described = segment_of(again)
    assert (described.base_offset, described.last_offset, described.state) == (100, 150, SegmentState.COPY_FINISHED)


def test_any_flipped_bit_of_an_index_is_noticed() -> None:
    content = index_of([(0, 0, 5), (10, 300, 9)]).encode()
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(ObjectDamagedError):
            PackedIndex.decode(bytes(damaged))
    with pytest.raises(ObjectDamagedError):
        PackedIndex.decode(content[:-1])


def test_searching_an_index() -> None:
    index = index_of([(0, 0, 50), (10, 300, 50), (30, 600, 90)])
    assert [index.position_of(offset) for offset in (100, 109, 110, 129, 130, 999)] == [0, 0, 300, 300, 600, 600]
    assert [index.boundary_before(position) for position in (0, 299, 300, 999, 1_000, 5_000)] == [
        0, 0, 300, 600, 1_000, 1_000
    ]  # fmt: skip
    assert [index.position_at_time(time) for time in (0, 50, 51, 90, 91)] == [0, 0, 300, 300, 600]


def test_a_manifest_comes_back_as_it_was() -> None:
    segments = tuple(remote(n, n + 9, state=SegmentState.COPY_FINISHED) for n in (0, 10))
    manifest = StreamManifest("cluster", PLACE, 4, {"retention.ms": "7"}, 8, segments)
    assert StreamManifest.decode(manifest.encode()) == manifest


def test_a_manifest_is_the_same_when_texts_of_its_segments_are_remembered() -> None:
    segments = tuple(remote(at, at + 9, state=SegmentState.COPY_FINISHED) for at in (0, 10, 20))
    manifest = StreamManifest("cluster", PLACE, 4, {"segments": "[]"}, 8, segments)
    texts = {each.id: segment_text(each) for each in segments}
    assert manifest.encode(lambda each: texts[each.id]) == manifest.encode()
    assert StreamManifest.decode(manifest.encode()) == manifest


def test_a_damaged_manifest_is_noticed() -> None:
    content = StreamManifest("cluster", PLACE, 4, {}, 1, ()).encode()
    with pytest.raises(ObjectDamagedError):
        StreamManifest.decode(content.replace(b"cluster", b"cIuster", 1))


@pytest.mark.parametrize(
    "change",
    [
        {"topic": None},
        {"topic": 7},
        {"cluster_id": ["c"]},
        {"topic_id": 5},
        {"partition": "0"},
        {"partitions": 1 << 40},
        {"start_offset": None},
        {"start_offset": 1 << 63},
        {"configs": {"retention.ms": 7}},
        {"configs": []},
        {"segments": 3},
        {"segments": [{"id": "x"}]},
    ],
)
def test_a_manifest_of_an_unknown_form_is_named_as_such(change: dict[str, object]) -> None:
    """As another version may write one: with a checksum that is right."""
    line = StreamManifest("cluster", PLACE, 4, {}, 1, ()).encode().partition(b"\n")[0]
    value = {key: content for key, content in (json.loads(line) | change).items() if content is not None}
    for other in (json.dumps(value), json.dumps([value]), "{" * 9):
        content = other.encode()
        with pytest.raises(LayoutError):
            StreamManifest.decode(b"%s\n%08x\n" % (content, crc32c(content)))


@pytest.mark.parametrize(
    "change", [{"size": None}, {"last_offset": 1.5}, {"node": 1 << 31}, {"epochs": [[1, "0"]]}, {"epochs": []}]
)
def test_a_manifest_with_a_segment_of_an_unknown_form_is_named_as_such(change: dict[str, object]) -> None:
    whole = StreamManifest("cluster", PLACE, 4, {}, 1, (remote(0, 9, state=SegmentState.COPY_FINISHED),))
    value = json.loads(whole.encode().partition(b"\n")[0])
    value["segments"][0] |= change
    content = json.dumps(value).encode()
    with pytest.raises(LayoutError):
        StreamManifest.decode(b"%s\n%08x\n" % (content, crc32c(content)))


# Images


def content_of(local: LocalLog, image: SegmentImage) -> bytes:
    segment = local.closed()[0]
    return b"".join(local.read(segment, position, size) for position, size in image.runs)


def test_rafts_own_entries_are_left_out_so_that_a_plain_kafka_segment_remains() -> None:
    local = LocalLog()
    local.own()
    local.append([b"a", b"b"], timestamp=5)
    local.own()
    local.own(EntryKind.LOG_START)
    local.append([b"c"], timestamp=9)
    local.begin_term(4)
    local.append([b"d"], timestamp=7)
    local.own()
    local.roll()
    segment = local.closed()[0]
    image = image_of(segment, local.rows(segment), 0)
    assert image is not None
    data = content_of(local, image)
    headers = [check_batch(data[at : at + size]) for at, size in split_batches(data)]
    assert [(header.base_offset, header.last_offset_delta) for header in headers] == [(0, 1), (2, 0), (3, 0)]
    assert len(data) == image.size
    assert (image.base_offset, image.next_offset, image.newest_timestamp) == (0, 4, 9)
    assert image.epochs == ((1, 0), (4, 3))


def test_a_copy_can_begin_inside_a_segment_where_another_replicas_segment_ended() -> None:
    local = LocalLog()
    for value in (b"a", b"b", b"c"):
        local.append([value, value])
    local.roll()
    segment = local.closed()[0]
    image = image_of(segment, local.rows(segment), 4)
    assert image is not None
    data = content_of(local, image)
    assert [check_batch(data[at : at + size]).base_offset for at, size in split_batches(data)] == [4]
    assert (image.base_offset, image.next_offset) == (4, 6)
    assert PackedIndex(4, image.size, image.offsets, image.times, b"", image.epochs, 1, (), b"").position_of(4) == 0


def test_a_segment_without_records_has_no_image() -> None:
    local = LocalLog()
    local.append([b"a"])
    local.own()
    local.roll()
    segment = local.closed()[0]
    assert image_of(segment, local.rows(segment), 1) is None


def test_index_rows_stand_where_batches_begin_and_not_too_far_apart() -> None:
    local = LocalLog(ROOMY)
    for number in range(60):
        local.append([bytes(9_000)], timestamp=number)
        if number % 20 == 7:
            local.own()
    local.roll()
    segment = local.closed()[0]
    image = image_of(segment, local.rows(segment), 0)
    assert image is not None
    data = content_of(local, image)
    begins = {at: check_batch(data[at : at + size]).base_offset for at, size in split_batches(data)}
    index = PackedIndex(0, image.size, image.offsets, image.times, b"", image.epochs, 1, (), b"")
    positions = [index._offset_row(number)[1] for number in range(index.rows)]
    assert all(begins[position] == index._offset_row(number)[0] for number, position in enumerate(positions))
    assert max(b - a for a, b in zip(positions, [*positions[1:], image.size], strict=True)) <= INDEX_INTERVAL_BYTES
