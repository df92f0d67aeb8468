"""The WAL as a stream of a real server: the same records and promises as in files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.e2e.broker import Broker, BrokerFailed
from tests.pikiwi.wal_world import START, item, items, record
from tidelog.pikiwi.config import load_config
from tidelog.pikiwi.errors import ConfigError, WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import WalGone, WalPoint, open_wal
from tidelog.pikiwi.wal import stream as stream_module
from tidelog.pikiwi.wal.record import BadRecord, encode_records
from tidelog.pikiwi.wal.stream import StreamWal, open_stream_wal
from tidelog.pikiwi.wal.stream_messages import CorruptStream
from tidelog.pikiwi.wal.stream_record import Begin, Follower, decode_message, encode_begin

# --- which messages count (no server needed) ---


def encoded(number: int, size: int = 20) -> bytes:
    position, payload = item(number, size)
    return b"".join(encode_records(7, number - 1, START, [(position, payload)])[0])


def test_a_message_is_a_record_as_in_a_file() -> None:
    assert decode_message(encoded(3)) == record(3)


def test_a_message_that_begins_anew_is_a_header_of_type_2() -> None:
    value = encode_begin(Begin(12, Position(9, 8)))

    assert (len(value), value[:4], value[7]) == (56, b"PWAL", 2)
    assert decode_message(value) == Begin(12, Position(9, 8))
    for at in range(56):
        if at == 7:
            continue
        damaged = bytearray(value)
        damaged[at] ^= 1
        with pytest.raises(BadRecord):
            decode_message(bytes(damaged))


def test_repetitions_are_left_out() -> None:
    follower = Follower()
    numbers = [5, 6, 7, 6, 7, 8, 8, 9]

    taken = [follower.take(encoded(number)) for number in numbers]
    assert [each and each.seq for each in taken] == [5, 6, 7, None, None, 8, None, 9]


def test_a_gap_and_a_position_that_goes_back_are_damage() -> None:
    follower = Follower()
    follower.take(encoded(5))

    with pytest.raises(BadRecord, match="record 7 stands where 6 is due"):
        follower.take(encoded(7))
    back = b"".join(encode_records(7, 5, START, [(Position(3, 101), b"x")])[0])
    with pytest.raises(BadRecord, match="which does not follow"):
        follower.take(back)


def test_beginning_anew_sets_position_and_number() -> None:
    follower = Follower()
    follower.take(encoded(5))
    assert follower.take(encode_begin(Begin(5, Position(1, 0)))) is None

    assert (follower.seq, follower.position) == (5, Position(1, 0))


def test_a_stream_wal_wants_brokers() -> None:
    with pytest.raises(ConfigError, match="set wal_stream_brokers"):
        load_config(None, ["master_port=9221", "wal_backend=stream"])


# --- against a server ---


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def wals(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator["Wals"]:
    made = Wals(broker, tmp_path, f"wal.{request.node.name}")
    yield made
    made.close()


class Wals:
    """Opens the stream of one test, again and again."""

    def __init__(self, broker: Broker, folder: Path, prefix: str) -> None:
        settings = ["master_port=9221", "wal_backend=stream", f"wal_stream_brokers={broker.bootstrap}"]
        self.config = load_config(None, [*settings, f"wal_stream_prefix={prefix}", f"wal_dir={folder}"])
        self.topic = f"{prefix}.db0"
        self.bootstrap = broker.bootstrap
        self._open: StreamWal | None = None

    def open(self) -> StreamWal:
        self.close()
        self._open = open_stream_wal(self.config, "db0")
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()

    def write(self, *values: bytes) -> None:
        """As somebody else."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(self.topic, value, b"db0", partition=0)
        assert producer.flush(30) == 0


@pytest.mark.slow
def test_records_are_written_read_back_and_gone_on_with(wals: Wals) -> None:
    wal = wals.open()
    assert (wal.last_seq, wal.last_position, wal.first_position, wal.durable) == (0, None, None, None)
    with pytest.raises(WalError, match=r"reset\(\)"):
        wal.append(7, items(1, 1))
    wal.reset(START)
    wal.append(7, items(1, 50))
    wal.append(7, items(51, 100))
    wal.sync()

    assert (wal.last_seq, wal.last_position, wal.first_position) == (100, item(100)[0], START)
    assert wal.durable == WalPoint(100, item(100)[0], 0, 101)
    assert list(wal.read(0)) == [record(number) for number in range(1, 101)]
    assert list(wal.read(97)) == [record(98), record(99), record(100)]
    assert list(wal.read(100)) == []

    wal = wals.open()
    assert (wal.last_seq, wal.last_position) == (100, item(100)[0])
    wal.append(7, items(101, 101))
    wal.sync()
    assert [each.seq for each in wal.read(99)] == [100, 101]
    with pytest.raises(WalError, match="record 102 is not in stream"):
        wal.read(102)


@pytest.mark.slow
def test_messages_are_the_files_records_with_the_database_as_key(wals: Wals) -> None:
    wal = wals.open()
    wal.reset(START)
    wal.append(7, items(1, 2))
    wal.sync()
    consumer = Consumer({"bootstrap.servers": wals.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(wals.topic, 0, 0)])
    messages = consumer.consume(3, timeout=30)
    consumer.close()

    assert [message.key() for message in messages] == [b"db0"] * 3
    assert [message.value() for message in messages[1:]] == [encoded(1), encoded(2)]


@pytest.mark.slow
def test_seek_and_clean(wals: Wals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "CLEAN_MESSAGES_MIN", 10)
    monkeypatch.setattr(stream_module, "CLEAN_EVERY_S", 0.0)
    wal = wals.open()
    wal.reset(START)
    wal.append(7, items(1, 60))
    wal.sync()

    assert [wal.seek(item(number)[0]) for number in (1, 2, 31, 60)] == [1, 2, 31, 60]
    assert wal.seek(START) == 0
    assert wal.seek(Position(3, item(31)[0].offset + 49)) == 31
    assert wal.seek(Position(9, 9)) == 60

    assert wal.clean(item(5)[0]) == 0, "so few are not worth it"
    size = wal.size_bytes
    removed = wal.clean(item(40)[0])
    assert 0 < removed < size
    assert wal.size_bytes == size - removed
    assert wal.first_position == item(40)[0]
    assert [each.seq for each in wal.read(40)] == list(range(41, 61))
    with pytest.raises(WalGone):
        wal.read(20)
    with pytest.raises(WalGone):
        wal.seek(item(20)[0])
    wal.clean(item(60)[0])
    wal = wals.open()
    assert (wal.last_seq, wal.last_position) == (60, item(60)[0]), "the last record is kept, it says where to go on"


@pytest.mark.slow
def test_cleaning_asks_the_brokers_only_now_and_then(wals: Wals, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver calls it every second, in the thread that writes."""
    searches: list[object] = []
    real = StreamWal._search
    monkeypatch.setattr(StreamWal, "_search", lambda self, before: (searches.append(before), real(self, before))[1])
    wal = wals.open()
    wal.reset(START)
    wal.append(7, items(1, 60))
    wal.sync()
    wal.clean(item(60)[0])
    assert searches == [], "so few are never worth it"

    monkeypatch.setattr(stream_module, "CLEAN_MESSAGES_MIN", 10)
    for number in (20, 40, 60):
        wal.clean(item(number)[0])
    assert len(searches) == 1


@pytest.mark.slow
def test_reset_begins_anew_and_goes_on_counting(wals: Wals) -> None:
    wal = wals.open()
    wal.reset(START)
    wal.append(7, items(1, 30))
    wal.sync()
    wal.reset(Position(1, 0))

    assert (wal.last_seq, wal.last_position, wal.first_position) == (30, Position(1, 0), Position(1, 0))
    with pytest.raises(WalGone):
        wal.read(29)
    wal = wals.open()
    assert (wal.last_seq, wal.last_position) == (30, Position(1, 0))
    wal.append(8, [(Position(1, 10), b"anew")])
    wal.sync()
    assert [(each.seq, each.payload) for each in wal.read(30)] == [(31, b"anew")]


@pytest.mark.slow
def test_beginning_anew_that_was_interrupted_is_finished(wals: Wals) -> None:
    wal = wals.open()
    wal.reset(START)
    wal.append(7, items(1, 5))
    wal.sync()
    wal.close()
    wals.write(encode_begin(Begin(5, Position(1, 0))))  # and then it died, before it removed what stands before

    wal = wals.open()
    assert (wal.last_seq, wal.last_position, wal.first_position) == (5, Position(1, 0), Position(1, 0))
    with pytest.raises(WalGone):
        wal.read(4)
    wal.append(8, [(Position(1, 10), b"anew")])
    wal.sync()
    assert [each.seq for each in wal.read(5)] == [6]
    assert wal.seek(Position(1, 10)) == 6


@pytest.mark.slow
def test_what_a_writer_that_died_left_late_is_found_at_the_next_opening(wals: Wals) -> None:
    wal = wals.open()
    wal.reset(START)
    wal.append(7, items(1, 5))
    wal.sync()
    wal.close()
    wals.write(encoded(6), encoded(7))

    wal = wals.open()
    assert wal.last_seq == 7
    wals.write(encoded(6), encoded(7), encoded(8))  # an attempt that arrives even later repeats what is there
    wal.append(7, items(8, 9))
    with pytest.raises(WalError, match="something else was written to it"):
        wal.sync()
    with pytest.raises(WalError, match="cannot be used any more"):
        wal.append(7, items(10, 10))

    wal = wals.open()
    assert wal.last_seq == 9
    assert list(wal.read(0)) == [record(number) for number in range(1, 10)], "each once"
    assert [wal.seek(item(number)[0]) for number in range(1, 10)] == list(range(1, 10))


@pytest.mark.slow
def test_a_message_that_is_no_record_is_damage_with_its_offset(wals: Wals) -> None:
    wal = wals.open()
    wal.reset(START)
    wal.append(7, items(1, 2))
    wal.sync()
    wal.close()
    wals.write(b"something else")

    with pytest.raises(CorruptStream, match="damaged at offset 3: 14 bytes are less than a header"):
        wals.open()


@pytest.mark.slow
def test_two_receivers_never_share_a_stream(wals: Wals) -> None:
    wals.open()

    with pytest.raises(WalError, match="in use by another receiver"):
        open_wal(wals.config, "db0")


@pytest.mark.slow
def test_brokers_that_do_not_answer_end_it_within_its_bound(
    wals: Wals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "TIMEOUT_S", 0.5)

    with pytest.raises(WalError, match="look at the brokers"):
        StreamWal("127.0.0.1:1", "nowhere", "db0", "test", tmp_path / "other")


@pytest.fixture
def mortal_broker(tmp_path: Path) -> Iterator[Broker]:
    """One that the test stops by itself."""
    broker = Broker(tmp_path)
    yield broker
    with contextlib.suppress(BrokerFailed):
        broker.stop()


@pytest.mark.slow
def test_a_sync_that_is_not_answered_fails_and_nothing_more_is_taken(
    mortal_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = mortal_broker
    settings = ["master_port=9221", "wal_backend=stream", f"wal_stream_brokers={broker.bootstrap}"]
    wal = open_stream_wal(load_config(None, [*settings, f"wal_dir={tmp_path}/wal"]), "db0")
    wal.reset(START)
    broker.stop()
    monkeypatch.setattr(stream_module, "TIMEOUT_S", 1.0)
    wal.append(7, items(1, 3))

    with pytest.raises(WalError, match="3 records did not arrive within 1 s"):
        wal.sync()
    assert wal.durable is not None
    assert wal.durable.seq == 0
    with pytest.raises(WalError, match="cannot be used any more"):
        wal.sync()
    wal.close()
