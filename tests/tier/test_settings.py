"""Settings about tiers: which go together, and that the page names those that exist."""

import dataclasses
import re
from pathlib import Path

import pytest

from tidelog.cluster.configs import TOPIC_CONFIGS, InvalidConfigError, TopicConfig, check_tiering
from tidelog.server.settings import Settings, SettingsError, dotted

PAGE = (Path(__file__).parents[2] / "docs" / "tiered-storage.md").read_text()
ON = {"remote.storage.enable": "true"}


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


def test_a_node_that_shall_tier_needs_a_store() -> None:
    with pytest.raises(SettingsError, match=r"remote\.log\.store\.url"):
        Settings(remote_log_storage_system_enable=True)


def test_the_page_names_every_setting_about_tiers_and_no_other() -> None:
    named = set(re.findall(r"`((?:remote|local)\.[a-z.]+)`", PAGE))
    named |= set(re.findall(r"^(remote\.[a-z.]+) =", PAGE, re.MULTILINE))
    nodes = {dotted(item.name) for item in dataclasses.fields(Settings) if item.name.startswith("remote_")}
    topics = {name for name in TOPIC_CONFIGS if name.startswith(("remote.", "local."))}
    assert named == nodes | topics
