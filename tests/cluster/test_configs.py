"""A topic's settings: what is accepted, and what the server makes of it."""

import re

import pytest

from tidelog.cluster import TOPIC_CONFIGS, InvalidConfigError, TopicConfig, check_topic_config

INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "delete"),
        ("compression.type", "producer"),
        ("leader.rack", ""),
        ("leader.rack", "Zürich 2 (new)"),
        ("leader.rack", "x" * 249),
        ("max.message.bytes", "0"),
        ("max.message.bytes", str(64 << 20)),
        ("message.timestamp.type", "CreateTime"),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.insync.replicas", "1"),
        ("min.insync.replicas", str(2**31 - 1)),
        ("retention.bytes", "-1"),
        ("retention.bytes", str(INT64_MAX)),
        ("retention.ms", "-1"),
        ("retention.ms", "0"),
        ("retention.ms", str(INT64_MAX)),
        ("segment.ms", "1"),
        ("segment.ms", str(INT64_MAX)),
    ],
)
def test_a_value_within_its_bounds_is_accepted(name: str, value: str) -> None:
    check_topic_config(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "delete,compact"),
        ("cleanup.policy", ""),
        ("compression.type", "zstd"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", str((64 << 20) + 1)),
        ("max.message.bytes", "1.5"),
        ("max.message.bytes", "many"),
        ("max.message.bytes", ""),
        ("message.timestamp.type", "createtime"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", str(2**31)),
        ("retention.bytes", "-2"),
        ("retention.bytes", str(INT64_MAX + 1)),
        ("retention.ms", "-2"),
        ("retention.ms", None),
        ("leader.rack", "x" * 250),
        ("leader.rack", None),
        ("segment.ms", "0"),
        ("segment.bytes", "1"),
        ("", "1"),
        ("Retention.ms", "1"),
    ],
)
def test_anything_else_is_refused_with_the_settings_name(name: str, value: str | None) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(name) or "there is no topic setting"):
        check_topic_config(name, value)


@pytest.mark.parametrize("key", TOPIC_CONFIGS.values(), ids=lambda key: key.name)
def test_every_default_is_a_value_that_is_accepted(key: object) -> None:
    check_topic_config(key.name, key.default)  # type: ignore[attr-defined]


def test_what_is_not_set_has_its_default() -> None:
    config = TopicConfig.of({})
    assert config == TopicConfig(1_048_588, False, -1, 604_800_000, 604_800_000, None)


def test_what_is_set_is_taken() -> None:
    config = TopicConfig.of(
        {
            "max.message.bytes": "10",
            "message.timestamp.type": "LogAppendTime",
            "retention.bytes": "20",
            "retention.ms": "-1",
            "segment.ms": "30",
            "leader.rack": "east",
        }
    )
    assert config == TopicConfig(10, True, 20, -1, 30, "east")
