"""ApiVersions, which every client asks first; and requests of keys and versions that nobody here speaks."""

import asyncio
import struct
from uuid import uuid4

import pytest

from tests.server.client import Client
from tests.server.world import World
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import RequestHeader, decode_response
from tidelog.wire.messages import APIS, ApiVersionsRequest, MetadataRequest, MetadataRequestTopic

KEY = 18


async def _raw(client: Client, key: int, version: int, body: bytes = b"") -> None:
    content = struct.pack(">hhih", key, version, 7, -1) + body
    client.send_bytes(struct.pack(">i", len(content)) + content)


@pytest.mark.parametrize("version", range(5))
async def test_every_version_lists_all_that_is_spoken(world: World, version: int) -> None:
    server = await world.start()
    request = ApiVersionsRequest(client_software_name="test-client", client_software_version="1.0")
    response = await (await server.connect()).ask(request, version)
    found = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert response.error_code == 0
    assert found == {api.key: (api.min_version, api.max_version) for api in APIS.values()}
    assert found[0][0] == 0, "older librdkafka takes a higher minimum for a broker without compression"


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
async def test_a_version_that_is_not_ours_is_answered_in_version_0(world: World, version: int) -> None:
    server = await world.start()
    client = await server.connect()
    await _raw(client, KEY, version, b"\x00whatever")
    frame = await client.receive_frame()
    assert frame is not None
    response = decode_response(RequestHeader(KEY, 0, 7), frame)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (KEY, 0, 4) in [(key.api_key, key.min_version, key.max_version) for key in response.api_keys]
    # The client goes on with what it has learned, on the same connection.
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    assert (await client.ask(request, 4)).error_code == 0


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("a", ""), ("-a", "1"), ("a b", "1"), ("a", "1\n"), ("ü", "1"), ("a", ".1")]
)
async def test_a_bad_name_of_the_software_is_an_invalid_request(world: World, name: str, version: str) -> None:
    server = await world.start()
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    for api_version in (3, 4):
        response = await (await server.connect()).ask(request, api_version)
        assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("key", [-1, 4, 5, 17, 24, 27, 68, 71, 1000, 32767])
async def test_a_key_that_nobody_speaks_ends_the_connection(world: World, key: int) -> None:
    server = await world.start()
    client = await server.connect()
    await _raw(client, key, 0)
    assert await client.receive_frame() is None


@pytest.mark.parametrize("api", [api for api in APIS.values() if api.key != KEY], ids=lambda api: api.name)
async def test_a_version_that_nobody_speaks_ends_the_connection(world: World, api: object) -> None:
    server = await world.start()
    for version in (api.max_version + 1, api.min_version - 1, 99):  # type: ignore[attr-defined]
        client = await server.connect()
        await _raw(client, api.key, version, bytes(40))  # type: ignore[attr-defined]
        await client.expect_closed()
    assert server.failure is None


@pytest.mark.parametrize(
    "version",
    [
        10,
        11,
        12,
        13,
    ],
)
async def test_metadata_of_an_id_that_is_not_there_is_answered(world: World, version: int) -> None:
    """Before version 12 an answer must have a name, which an unknown id has not."""
    server = await world.start()
    client = await server.connect()
    async with asyncio.timeout(2):
        response = await client.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=uuid4())]), version
        )
    assert response.topics[0].error_code != 0
