"""Every message in every version that we speak: does it survive a round trip, and do others read and write it alike?"""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.oracles import oracles_of, plain
from tests.wire.samples import MESSAGE_IDS, MESSAGES, messages
from tidelog.wire import messages as messages_package
from tidelog.wire.codec import decode, encode
from tidelog.wire.messages import APIS, PRIVATE_APIS, Api

# Few examples for each of some 370 messages are many altogether; a profile that wants more gets more.
FEW = settings(max_examples=max(6, settings().max_examples // 16))


def encoded(api: Api, version: int, message: object) -> bytes:
    return b"".join(encode(message, version, api.flexible(version)))


@pytest.mark.parametrize(("api", "cls", "version"), MESSAGES, ids=MESSAGE_IDS)
@given(data=st.data())
@FEW
def test_message_survives_a_round_trip_and_means_the_same_to_every_oracle(
    api: Api, cls: type[Any], version: int, data: st.DataObject
) -> None:
    message = data.draw(messages(cls, version))
    body = encoded(api, version, message)
    assert decode(cls, version, api.flexible(version), body) == (message, len(body))
    for name, oracle in oracles_of(api, cls, version).items():
        values, written = oracle.ask(api, cls, version, body)
        assert values == plain(cls, version, message), f"{name} reads other values"
        assert written == body, f"{name} writes other bytes"


def test_every_message_has_two_oracles() -> None:
    """A message that only one oracle knows, or none, has to be named here."""
    fewer = {
        (cls.__name__, version): len(oracles_of(api, cls, version))
        for api, cls, version in MESSAGES
        if len(oracles_of(api, cls, version)) < 2
    }
    assert fewer == {
        ("UnregisterBrokerRequest", 0): 1,
        ("UnregisterBrokerResponse", 0): 1,
        # Tidelog's own.
        ("TidelogAdminRequest", 0): 0,
        ("TidelogAdminResponse", 0): 0,
        ("ReadSegmentRequest", 0): 0,
        ("ReadSegmentResponse", 0): 0,
    }


def test_kio_knows_all_but_the_versions_that_kafka_4_dropped() -> None:
    unknown: defaultdict[str, set[int]] = defaultdict(set)
    for api, cls, version in MESSAGES:
        if api.key in APIS and "kio" not in oracles_of(api, cls, version):
            unknown[api.name].add(version)
    assert unknown == {
        "Produce": {0, 1, 2},
        "Fetch": {0, 1, 2, 3},
        "ListOffsets": {0},
        "CreateTopics": {0, 1},
        "DeleteTopics": {0},
        "OffsetForLeaderEpoch": {0, 1},
        "DescribeConfigs": {0},
    }


def test_advertised_versions() -> None:
    assert {(api.key, api.name): (api.min_version, api.max_version) for api in APIS.values()} == {
        (0, "Produce"): (0, 13),
        (1, "Fetch"): (0, 18),
        (2, "ListOffsets"): (0, 11),
        (3, "Metadata"): (0, 13),
        (8, "OffsetCommit"): (2, 9),
        (9, "OffsetFetch"): (1, 9),
        (10, "FindCoordinator"): (0, 6),
        (11, "JoinGroup"): (0, 9),
        (12, "Heartbeat"): (0, 4),
        (13, "LeaveGroup"): (0, 5),
        (14, "SyncGroup"): (0, 5),
        (15, "DescribeGroups"): (0, 6),
        (16, "ListGroups"): (0, 5),
        (18, "ApiVersions"): (0, 4),
        (19, "CreateTopics"): (0, 7),
        (20, "DeleteTopics"): (0, 6),
        (21, "DeleteRecords"): (0, 2),
        (22, "InitProducerId"): (0, 5),
        (23, "OffsetForLeaderEpoch"): (0, 4),
        (32, "DescribeConfigs"): (0, 4),
        (33, "AlterConfigs"): (0, 2),
        (35, "DescribeLogDirs"): (1, 5),
        (37, "CreatePartitions"): (0, 3),
        (42, "DeleteGroups"): (0, 2),
        (43, "ElectLeaders"): (0, 2),
        (44, "IncrementalAlterConfigs"): (0, 1),
        (45, "AlterPartitionReassignments"): (0, 1),
        (46, "ListPartitionReassignments"): (0, 0),
        (47, "OffsetDelete"): (0, 0),
        (55, "DescribeQuorum"): (0, 2),
        (60, "DescribeCluster"): (0, 2),
        (64, "UnregisterBroker"): (0, 0),
        (75, "DescribeTopicPartitions"): (0, 0),
    }


def test_private_requests_have_keys_that_kafka_will_not_take() -> None:
    assert {(api.key, api.name): (api.min_version, api.max_version) for api in PRIVATE_APIS.values()} == {
        (10_000, "TidelogAdmin"): (0, 0),
        (10_001, "ReadSegment"): (0, 0),
    }
    assert not PRIVATE_APIS.keys() & APIS.keys()


def test_a_message_made_of_defaults_can_be_sent_in_every_version() -> None:
    for api, cls, version in MESSAGES:
        body = encoded(api, version, cls())
        message, _ = decode(cls, version, api.flexible(version), body)
        assert plain(cls, version, message) == plain(cls, version, cls())


def test_the_package_exports_every_message() -> None:
    assert {cls.__name__ for _, cls, _ in MESSAGES} <= set(messages_package.__all__)
