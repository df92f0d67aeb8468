"""Settings about tiers: which go together, and that the page names those that exist."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.server.many import ClusterWorld
from tests.server.operating import create_on
from tests.tier.tiered import settings
from tidelog.cluster.configs import TOPIC_CONFIGS, InvalidConfigError, TopicConfig, check_tiering
from tidelog.server.settings import Settings, SettingsError, dotted
from tidelog.wire.messages import DescribeConfigsRequest, DescribeConfigsRequestResource

PAGE = (Path(__file__).parents[2] / "docs" / "tiered-storage.md").read_text()
ON = {"remote.storage.enable": "true"}
ON_ = {"remote_storage_enable": "true"}
NODE_STATIC = 4
"""Where a value comes from, as DescribeConfigs says it."""


@pytest.mark.parametrize(
    ("why", "configs", "before"),
    [
        ("nothing is said", {}, {}),
        ("tiered", ON, {}),
        ("local less than total", {**ON, "local.retention.ms": "5", "retention.ms": "9"}, {}),
        ("local as total", {**ON, "local.retention.bytes": "9", "retention.bytes": "9"}, {}),
        ("local bound, total none", {**ON, "local.retention.ms": "5", "retention.ms": "-1"}, {}),
        ("no local bound, total none", {**ON, "local.retention.bytes": "-1", "retention.bytes": "-1"}, {}),
        ("read only", {**ON, "remote.log.copy.disable": "true"}, ON),
        ("off, with deletion", {"remote.log.delete.on.disable": "true"}, ON),
        ("copied as late as the disk allows", {**ON, "remote.copy.lag.ms": "5", "local.retention.ms": "5"}, {}),
        ("copied late, and no bound on disk", {**ON, "remote.copy.lag.bytes": "5"}, {}),
    ],
)
def test_settings_that_go_together(why: str, configs: dict[str, str], before: dict[str, str]) -> None:
    check_tiering(configs, before, available=True)


@pytest.mark.parametrize(
    ("why", "configs", "before"),
    [
        ("local more than total", {**ON, "local.retention.ms": "10", "retention.ms": "9"}, {}),
        ("local without a bound, total with one", {**ON, "local.retention.bytes": "-1", "retention.bytes": "9"}, {}),
        ("read only needs local as total", {**ON, "remote.log.copy.disable": "true", "local.retention.ms": "5"}, ON),
        ("off without saying what becomes of the store", {}, ON),
        ("off without saying it, explicitly", {"remote.storage.enable": "false"}, ON),
        ("copied later than it may leave the disk", {**ON, "remote.copy.lag.ms": "6", "local.retention.ms": "5"}, {}),
        ("the same, by the total", {**ON, "remote.copy.lag.bytes": "6", "retention.bytes": "5"}, {}),
    ],
)
def test_settings_that_do_not(why: str, configs: dict[str, str], before: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError):
        check_tiering(configs, before, available=True)


def test_a_lag_that_is_set_alone_is_not_undone_by_the_other() -> None:
    """Either is enough to have a segment copied, and 0 means at once."""
    assert _lags({}) == (0, 0)
    assert _lags({"remote.copy.lag.ms": "5"}) == (5, -1)
    assert _lags({"remote.copy.lag.bytes": "5"}) == (-1, 5)
    assert _lags({"remote.copy.lag.ms": "5", "remote.copy.lag.bytes": "0"}) == (5, 0)


def _lags(configs: dict[str, str]) -> tuple[int, int]:
    config = TopicConfig.of(configs)
    return config.copy_lag_ms, config.copy_lag_bytes


def test_without_a_store_nothing_is_tiered() -> None:
    with pytest.raises(InvalidConfigError, match="store"):
        check_tiering(ON, {}, available=False)


async def test_topics_that_leave_it_open_have_the_nodes_retention_and_lags(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    await cluster.start(
        1, **settings(tmp_path, log_retention_ms=9_000, log_local_retention_ms=7_000, log_remote_copy_lag_ms=5_000)
    )
    await create_on(cluster.any, "t", [1], **ON_)
    await create_on(cluster.any, "own", [1], **ON_, retention_ms="90000", local_retention_ms="6000")
    await create_on(cluster.any, "short", [1], retention_ms="10")  # not tiered: what is local does not concern it
    with pytest.raises(AssertionError, match="what stays on disk"):
        await create_on(cluster.any, "late", [1], **ON_, local_retention_ms="4999")
    found = (await cluster.until_led("t")).replica("t").config
    assert (found.retention_ms, found.local_retention_ms) == (9_000, 7_000)
    assert (found.copy_lag_ms, found.copy_lag_bytes) == (5_000, -1)
    own = (await cluster.until_led("own")).replica("own").config
    assert (own.retention_ms, own.local_retention_ms) == (90_000, 6_000)
    asked = DescribeConfigsRequestResource(resource_type=2, resource_name="t", configuration_keys=["retention.ms"])
    client = await cluster.any.connect()
    (shown,) = (await client.ask(DescribeConfigsRequest(resources=[asked]))).results[0].configs
    assert (shown.value, shown.config_source) == ("9000", NODE_STATIC)


def test_a_node_that_shall_tier_needs_a_store() -> None:
    with pytest.raises(SettingsError, match=r"remote\.log\.store\.url"):
        Settings(remote_log_storage_system_enable=True)


def test_the_page_names_every_setting_about_tiers_and_no_other() -> None:
    named = set(re.findall(r"`((?:remote|local|log)\.[a-z.]+)`", PAGE)) - {"log.dirs"}
    named |= set(re.findall(r"^(remote\.[a-z.]+) =", PAGE, re.MULTILINE))
    nodes = {dotted(item.name) for item in dataclasses.fields(Settings)}
    nodes = {name for name in nodes if name.startswith(("remote.", "log."))} - {"log.dirs"}
    topics = {name for name in TOPIC_CONFIGS if name.startswith(("remote.", "local."))}
    assert named == nodes | topics
