"""Quotas: a bucket that may go into debt, and who is made to wait for it."""

from typing import Any

import pytest

from tests.server.client import Client, batch_of, fetch_request, produce_request
from tests.server.world import Server, World
from tidelog.server.quotas import DELAY_MS_MAX, TokenBucket
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    IncrementalAlterConfigsEntry,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
)

NODE = 4


@pytest.mark.parametrize(
    ("rate", "charges", "delays"),
    [
        pytest.param(0, [(0, 10**9), (0, 10**9)], [0, 0], id="no bound"),
        pytest.param(1_000, [(0, 1_000)], [0], id="a second may be saved up"),
        pytest.param(1_000, [(0, 1_001)], [2], id="beyond it there is a debt, rounded up"),
        pytest.param(1_000, [(0, 1_000), (0, 500)], [0, 501], id="debts are paid at the rate"),
        pytest.param(1_000, [(0, 3_000), (2_000, 0)], [2_001, 0], id="after the wait the debt is paid"),
        pytest.param(1_000, [(0, 3_000), (1_000, 0)], [2_001, 1_001], id="half the wait, half the debt"),
        pytest.param(1_000, [(0, 1_000), (60_000, 1_500)], [0, 501], id="not more than a second is saved up"),
        pytest.param(1, [(0, 10**9)], [DELAY_MS_MAX], id="one wait is bounded"),
        pytest.param(1, [(0, 10**6), (30_000, 0)], [DELAY_MS_MAX, DELAY_MS_MAX], id="the debt is not forgotten"),
        pytest.param(1_000, [(5, 0), (5, 0)], [0, 0], id="nothing costs nothing"),
    ],
)
def test_a_bucket(rate: int, charges: list[tuple[int, int]], delays: list[int]) -> None:
    bucket = TokenBucket(rate, 0)
    assert [bucket.charge(size, now_ms) for now_ms, size in charges] == delays


def test_a_charge_that_comes_late_with_an_earlier_time_takes_no_more_than_its_size() -> None:
    """Requests end in another order than they came: the time of one may lie before that of the last charge."""
    bucket = TokenBucket(1_000, 0)
    assert bucket.charge(0, 10_000) == 0
    assert bucket.charge(500, 9_000) == 0


def test_a_new_rate_forgets_the_debt() -> None:
    bucket = TokenBucket(10, 0)
    bucket.charge(1_000_000, 0)
    bucket.set_rate(1_000, 0)
    assert bucket.charge(1_000, 0) == 0
    bucket.set_rate(0, 0)
    assert bucket.charge(10**12, 0) == 0


def test_the_same_rate_again_keeps_the_debt() -> None:
    bucket = TokenBucket(1_000, 0)
    bucket.charge(3_000, 0)
    bucket.set_rate(1_000, 0)
    assert bucket.charge(0, 0) == 2_001


async def _alter(client: Client, name: str, value: str | None, node: str = "1") -> int:
    entry = IncrementalAlterConfigsEntry(name=name, config_operation=0 if value is not None else 1, value=value)
    resource = IncrementalAlterConfigsRequestResource(resource_type=NODE, resource_name=node, configs=[entry])
    response = await client.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    return response.responses[0].error_code


async def _throttled(server: Server, request: object, version: int) -> int:
    """What the answer says, and whether the connection is muted as long as it says so."""
    client = await server.connect()
    response = await client.ask(request, version)
    (connection,) = [one for one in server.broker.connections if one.peer.endswith(f":{client.port}")]
    assert (connection._mute is not None) == (response.throttle_time_ms > 0)
    client.abort()
    return response.throttle_time_ms


@pytest.mark.parametrize("node", ["1", ""])
async def test_a_write_quota_set_at_run_time_throttles_producers_and_can_be_taken_back(world: World, node: str) -> None:
    server = await world.start()
    await server.create("t")
    admin = await server.connect()
    producer = await server.connect()
    assert (await producer.ask(_produce(), 9)).throttle_time_ms == 0
    assert await _alter(admin, "quota.write.bytes.per.second", "20000", node) == 0
    answer = await producer.ask(_produce(), 9)
    assert 1_000 < answer.throttle_time_ms < 5_000
    assert await _alter(admin, "quota.write.bytes.per.second", None, node) == 0
    assert await _throttled(server, _produce(), 9) == 0


def _produce() -> object:
    return produce_request("t", [(0, batch_of(bytes(60_000)))])


@pytest.mark.parametrize(
    ("quota", "cold", "throttled"),
    [
        ("quota_tail_read_bytes_per_second", False, True),
        ("quota_tail_read_bytes_per_second", True, False),
        ("quota_catch_up_read_bytes_per_second", False, False),
        ("quota_catch_up_read_bytes_per_second", True, True),
    ],
)
async def test_reads_are_charged_to_their_own_class(world: World, quota: str, cold: bool, throttled: bool) -> None:
    settings: dict[str, Any] = {quota: 20_000} | ({"storage_tail_cache_bytes": 1} if cold else {})
    server = await world.start(**settings)
    await server.create("t")
    producer = await server.connect()
    for _ in range(3):
        assert (await producer.produce("t", batch_of(bytes(60_000)))).error_code == 0
    throttle_ms = await _throttled(server, fetch_request("t", [(0, 0)], partition_max_bytes=60_000), 12)
    assert (throttle_ms > 1_000) == throttled


async def test_a_muted_connection_is_read_again_when_its_time_is_up(world: World) -> None:
    server = await world.start(quota_write_bytes_per_second=500_000)
    await server.create("t")
    client = await server.connect()
    for _ in range(10):
        client.send(_produce(), 9)
    throttles = [answer.throttle_time_ms for answer in await client.receive_all()]
    assert throttles[0] == 0
    assert throttles[-1] > 0
    assert server.high_watermark("t") == 10


@pytest.mark.parametrize(
    ("name", "value", "node"),
    [
        ("quota.write.bytes.per.second", "-1", "1"),
        ("quota.write.bytes.per.second", "many", "1"),
        ("quota.write.bytes.per.second", "1", "2"),
        ("storage.sync", "none", "1"),
        ("no.such.setting", "1", "1"),
    ],
)
async def test_settings_that_cannot_be_changed_are_refused(world: World, name: str, value: str, node: str) -> None:
    server = await world.start()
    error = await _alter(await server.connect(), name, value, node)
    assert error in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    assert server.broker.live() == server.settings
