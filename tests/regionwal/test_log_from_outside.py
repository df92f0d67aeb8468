"""The region's topics as any Kafka client finds them: HoraeDB's names, keys and values, and what no writer makes."""

import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.regionwal import CorruptRecord, UnsupportedVersion

from .world import World, contents, expected, payloads

REGION, TABLE = 9, 4
DATA_KEY = struct.Struct(">BQQQB")  # namespace, region, table, sequence, version
META_KEY = struct.Struct(">BBQ")  # namespace, version, region
EPOCH_TABLE = 2**64 - 1  # ours: no table of any database


def test_topics_have_horaedbs_names_and_one_partition(world: World) -> None:
    world.node().open_region(REGION)

    topics = world.admin.list_topics(timeout=20).topics

    assert world.topics() == {f"{world.namespace}_data_{REGION}", f"{world.namespace}_meta_{REGION}"}
    assert [len(topics[topic].partitions) for topic in world.topics()] == [1, 1]


def test_region_that_exists_is_opened_and_not_made_again(world: World) -> None:
    world.node().write(REGION, TABLE, payloads(TABLE, 1, 3))
    topics = world.topics()

    second = world.node()
    second.open_region(REGION)
    second.open_region(REGION)

    assert world.topics() == topics
    assert contents(second.scan(REGION)) == expected(TABLE, 1, 3)


def test_two_nodes_that_create_a_region_at_once_create_it_once(world: World) -> None:
    nodes = [world.node() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda node: node.open_region(REGION), nodes))

    assert len(world.topics()) == 2


def test_entries_are_horaedbs_keys_and_values(world: World) -> None:
    world.node().write(REGION, TABLE, payloads(TABLE, 1, 3))

    records = [
        (DATA_KEY.unpack(message.key() or b""), message.value()) for message in world.records(world.data_topic(REGION))
    ]

    assert [record for record in records if record[0][2] != EPOCH_TABLE] == [
        ((1, REGION, TABLE, number, 0), b"\0" + payload) for number, payload in enumerate(payloads(TABLE, 1, 3), 1)
    ]


def test_snapshot_is_horaedbs_key_and_a_protobuf_message_with_its_fields(world: World) -> None:
    wal = world.node()
    wal.write(REGION, TABLE, payloads(TABLE, 1, 5))
    offsets = {entry.sequence: entry.offset for entry in wal.scan(REGION)}
    wal.mark_delete(REGION, TABLE, 2)
    wal.clean_region(REGION)

    message = world.records(world.meta_topic(REGION))[-1]

    assert META_KEY.unpack(message.key() or b"") == (0, 0, REGION)
    value = message.value()
    assert value is not None
    assert value[0] == 0
    [table] = [content for number, content in protobuf_fields(value[1:]) if number == 2]
    assert isinstance(table, bytes)
    fields = dict(protobuf_fields(table))
    assert [fields[number] for number in range(1, 6)] == [TABLE, 6, 3, offsets[5] + 1, offsets[3]]


def protobuf_fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Varints and byte strings are all that these messages have."""

    def varint(position: int) -> tuple[int, int]:
        number = shift = 0
        while True:
            byte = message[position]
            number |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                return number, position

    fields: list[tuple[int, int | bytes]] = []
    position = 0
    while position < len(message):
        tag, position = varint(position)
        content, position = varint(position)
        if tag & 7 == 2:
            fields.append((tag >> 3, message[position : position + content]))
            position += content
        else:
            assert tag & 7 == 0
            fields.append((tag >> 3, content))
    return fields


def test_both_ends_of_the_data_topic_move_as_entries_come_and_go(world: World) -> None:
    wal = world.node()
    wal.open_region(REGION)
    topic = world.data_topic(REGION)
    empty = (world.earliest(topic), world.latest(topic))

    wal.write(REGION, TABLE, payloads(TABLE, 1, 10))
    written = (world.earliest(topic), world.latest(topic))
    wal.mark_delete(REGION, TABLE, 10)
    wal.clean_region(REGION)
    cleaned = (world.earliest(topic), world.latest(topic))

    assert written == (empty[0], empty[1] + 10)
    assert cleaned == (written[1], written[1])


def test_two_readers_read_the_same_at_once(world: World) -> None:
    wal = world.node()
    wal.write(REGION, TABLE, payloads(TABLE, 1, 500))

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: contents(wal.scan(REGION)), range(2))

    assert one == two == expected(TABLE, 1, 500)


# --- What no writer of this format makes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "error", "why"),
    [
        (None, b"\0x", CorruptRecord, "key"),
        (b"short", b"\0x", CorruptRecord, "key"),
        (DATA_KEY.pack(1, REGION + 1, TABLE, 4, 0), b"\0x", CorruptRecord, "region"),
        (DATA_KEY.pack(1, REGION, TABLE, 4, 1), b"\0x", UnsupportedVersion, "version"),
    ],
    ids=["no key", "short key", "another region's", "newer version"],
)
def test_foreign_record_is_named_with_its_topic_and_offset(
    tidelog_world: World, key: bytes | None, value: bytes, error: type[CorruptRecord], why: str
) -> None:
    world = tidelog_world
    first = world.node()
    first.write(REGION, TABLE, payloads(TABLE, 1, 3))
    first.close()
    offset = world.produce(world.data_topic(REGION), key, value)

    with pytest.raises(error, match=why) as raised:
        world.node().open_region(REGION)

    assert (raised.value.topic, raised.value.offset) == (world.data_topic(REGION), offset)
