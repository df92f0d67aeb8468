from typing import Any

import pytest

from .command import Tidelog


def described(tidelog: Tidelog, stream: str) -> dict[str, Any]:
    return tidelog.succeed("stream", "describe", stream, "--json").parsed


def bounds(tidelog: Tidelog, stream: str) -> list[tuple[int, int]]:
    return [(row["earliest"], row["latest"]) for row in described(tidelog, stream)["partitions"]]


def test_create_then_list_then_describe(tidelog: Tidelog) -> None:
    created = tidelog.succeed(
        "stream", "create", "orders", "--partitions", "2", "--replicas", "1", "--config", "retention.ms=60000"
    )
    assert created.out == b"created orders\n"
    assert b"orders" in tidelog.succeed("stream", "list").out
    assert {"stream": "orders", "partitions": 2, "replicas": 1} in tidelog.succeed("stream", "list", "--json").parsed
    text = tidelog.succeed("stream", "describe", "orders").out.decode()
    assert "configs  retention.ms=60000\n" in text
    header = ["PARTITION", "LEADER", "TERM", "REPLICAS", "VOTERS", "LEARNERS", "EARLIEST", "LATEST"]
    assert text.splitlines()[2].split() == header
    first = dict(zip(header, text.splitlines()[3].split(), strict=True))
    assert int(first.pop("TERM")) > 0
    assert first == {
        "PARTITION": "0", "LEADER": "1", "REPLICAS": "1", "VOTERS": "1", "LEARNERS": "-", "EARLIEST": "0", "LATEST": "0"
    }  # fmt: skip


def test_create_without_numbers_takes_the_clusters_defaults(tidelog: Tidelog) -> None:
    assert tidelog.succeed("stream", "create", "plain", "--json").parsed == {"created": "plain"}
    stream = described(tidelog, "plain")
    assert stream["configs"] == {}
    assert [row["replicas"] for row in stream["partitions"]] == [[1]]


def test_create_again_is_refused(tidelog: Tidelog, stream: str) -> None:
    assert tidelog.fail("stream", "create", stream).startswith(f"stream {stream} exists already: ")


def test_create_with_a_wrong_config_says_what_the_server_says(tidelog: Tidelog) -> None:
    assert "retention.ms" in tidelog.fail("stream", "create", "wrong", "--config", "retention.ms=soon")
    assert "no.such" in tidelog.fail("stream", "create", "wrong", "--config", "no.such=1")


def test_create_with_more_replicas_than_nodes_is_refused(tidelog: Tidelog) -> None:
    assert tidelog.fail("stream", "create", "wide", "--replicas", "9").startswith("stream wide: ")


def test_list_shows_internal_streams_only_when_asked(tidelog: Tidelog, stream: str) -> None:
    tidelog.succeed("consume", stream, "--group", "lister", "--exit")  # a group makes the stream of positions
    plain = {row["stream"] for row in tidelog.succeed("stream", "list", "--json").parsed}
    internal = {row["stream"] for row in tidelog.succeed("stream", "list", "--json", "--internal").parsed}
    assert "__consumer_offsets" in internal - plain


def test_alter_adds_partitions_sets_and_unsets(tidelog: Tidelog, stream: str) -> None:
    altered = tidelog.succeed("stream", "alter", stream, "--partitions", "3", "--config", "retention.ms=1000")
    assert altered.out == f"altered {stream}\n".encode()
    assert described(tidelog, stream)["configs"] == {"retention.ms": "1000"}
    assert bounds(tidelog, stream) == [(0, 0)] * 3
    assert tidelog.succeed("stream", "alter", stream, "--unset", "retention.ms", "--json").parsed == {"altered": stream}
    assert described(tidelog, stream)["configs"] == {}


@pytest.mark.parametrize("wrong", [("--partitions", "1"), ("--config", "no.such=1")], ids=" ".join)
def test_alter_that_is_refused_in_part_changes_nothing(tidelog: Tidelog, stream: str, wrong: tuple[str, str]) -> None:
    before = described(tidelog, stream)
    tidelog.fail("stream", "alter", stream, "--partitions", "2", "--config", "retention.ms=1000", *wrong)
    assert described(tidelog, stream) == before


def test_alter_wants_something_to_change(tidelog: Tidelog, stream: str) -> None:
    assert tidelog.fail("stream", "alter", stream).startswith("nothing to change")


def test_delete_removes_those_that_are_there_and_names_those_that_are_not(tidelog: Tidelog) -> None:
    for name in ("gone-1", "gone-2"):
        tidelog.succeed("stream", "create", name)
    ended = tidelog.run("stream", "delete", "gone-1", "absent", "gone-2")
    assert ended.status == 1
    assert ended.lines == [b"deleted gone-1", b"deleted gone-2"]
    assert "there is no stream absent" in ended.err
    left = {row["stream"] for row in tidelog.succeed("stream", "list", "--json").parsed}
    assert not left & {"gone-1", "gone-2"}


def test_delete_prints_json(tidelog: Tidelog, stream: str) -> None:
    assert tidelog.succeed("stream", "delete", stream, "--json").parsed == {"deleted": [stream]}


def test_trim_moves_earliest(tidelog: Tidelog, stream: str) -> None:
    tidelog.succeed("produce", stream, stdin=b"0\n1\n2\n3\n")
    assert tidelog.succeed("stream", "trim", stream, "--before", "3").out == (
        f"partition 0 of {stream} begins at 3\n".encode()
    )
    assert bounds(tidelog, stream) == [(3, 4)]
    assert tidelog.succeed("consume", stream, "--exit").out == b"3\n"
    assert tidelog.succeed("stream", "trim", stream, "--before", "latest", "--json").parsed == {
        "trimmed": stream,
        "partitions": [{"partition": 0, "earliest": 4}],
    }
    assert tidelog.succeed("consume", stream, "--exit").out == b""


def test_trim_can_spare_other_partitions(tidelog: Tidelog, stream: str) -> None:
    tidelog.succeed("stream", "alter", stream, "--partitions", "2")
    for partition in ("0", "1"):
        tidelog.succeed("produce", stream, "--partition", partition, stdin=b"a\nb\n")
    tidelog.succeed("stream", "trim", stream, "--before", "1", "--partition", "1")
    assert bounds(tidelog, stream) == [(0, 2), (1, 2)]
    assert "has no partition 7: it has 0 to 1" in tidelog.fail(
        "stream", "trim", stream, "--before", "1", "--partition", "7"
    )


def test_trim_beyond_the_end_of_one_partition_trims_none(tidelog: Tidelog, stream: str) -> None:
    tidelog.succeed("stream", "alter", stream, "--partitions", "2")
    tidelog.succeed("produce", stream, "--partition", "0", stdin=b"a\nb\n")
    assert f"partition 1 of {stream} ends at 0" in tidelog.fail("stream", "trim", stream, "--before", "1")
    assert bounds(tidelog, stream) == [(0, 2), (0, 0)]
