"""The same calls on every kind of store: what tiering relies on holds for all of them.

What stands for what: Azurite for Azure; moto's S3 server for GCS, whose XML interface has the same shape; a folder
through opendal for HDFS, of which none runs here. Buckets and folders proper are in `test_store`.
"""

import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.clients.environments import Unavailable
from tests.tier.azure import CONTAINER, azure_options, azurite
from tests.tier.s3 import FaultProxy, s3_server
from tidelog.tier.errors import LayoutError, ObjectMissingError, StoreUnavailableError
from tidelog.tier.store import Patience, RetriedStore, open_store

QUICK = Patience(call_s=10.0, tries_max=2, pause_s=0.001)
PIECE = 5 << 20
OWN_BUCKET = "of-gcs"  # where no other test has left anything
S3_AUTHORIZATION = b"Authorization: AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request"


class AsS3(FaultProxy):
    """GCS's client sends a token of no length when it has none, and writes names as `%2D`: moto stumbles over both."""

    def __init__(self, port: int) -> None:
        super().__init__(port, lambda *_: None)

    async def _ask(self, head: bytes, body: bytes, method: str) -> tuple[bytes, bytes]:
        first, *lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"authorization:")]
        plain = first.replace(b"%2D", b"-").replace(b"%2F", b"/")
        return await super()._ask(b"\r\n".join((plain, S3_AUTHORIZATION, *lines)), body, method)


@asynccontextmanager
async def azure(_folder: Path) -> AsyncIterator[RetriedStore]:
    try:
        with azurite() as port:
            yield open_store(f"az://{CONTAINER}/some/prefix", azure_options(port), QUICK, random.Random(1))
    except Unavailable as reason:
        pytest.skip(str(reason))


@asynccontextmanager
async def gcs(_folder: Path) -> AsyncIterator[RetriedStore]:
    with s3_server(OWN_BUCKET) as port:
        async with AsS3(port) as proxy:
            key = {"gcs_base_url": f"http://127.0.0.1:{proxy.port}", "disable_oauth": True}
            unused = {"client_email": "", "private_key": "", "private_key_id": ""}
            options = {"service_account_key": json.dumps(key | unused), "allow_http": "true"}
            yield open_store(f"gs://{OWN_BUCKET}/some/prefix", options, QUICK, random.Random(1))


@asynccontextmanager
async def hdfs(folder: Path) -> AsyncIterator[RetriedStore]:
    opendal = pytest.importorskip("opendal", reason="the extra for HDFS is not installed")
    from tidelog.tier.hdfs import UNFINISHED, OpendalBackend  # noqa: PLC0415 - an extra

    operator = opendal.AsyncOperator("fs", root=f"{folder}", atomic_write_dir=f"{folder}/{UNFINISHED}")
    yield RetriedStore(OpendalBackend(operator), QUICK, random.Random(1))


async def pieces() -> AsyncIterator[bytes]:
    for number in range(3):
        yield bytes([number]) * PIECE


async def broken_off() -> AsyncIterator[bytes]:
    yield b"begun"
    raise StoreUnavailableError("nothing more comes")


async def use(store: RetriedStore) -> None:
    """Everything in one go: a server is started for it."""
    for name in ("t-x/0/b", "t-x/0/a", "t-x/1/c", "u-y/0/d"):
        await store.put(name, name.encode())
    await store.put("t-x/0/a", memoryview(b"0123456789"))
    assert await store.read_all("t-x/0/a") == b"0123456789", "putting again replaces"
    assert await store.read("t-x/0/a", 3, 4) == b"3456"
    with pytest.raises(StoreUnavailableError):
        await store.read("t-x/0/a", 8, 5)
    await store.put_parts("t-x/1/parts", pieces)
    assert await store.read("t-x/1/parts", PIECE - 1, 2) == b"\0\1"
    with pytest.raises(StoreUnavailableError):
        await store.put_parts("t-x/1/half", broken_off)
    listed = [(each.name, each.size) for each in await store.objects("t-x/")]
    assert listed == [("t-x/0/a", 10), ("t-x/0/b", 7), ("t-x/1/c", 7), ("t-x/1/parts", 3 * PIECE)]
    assert len(await store.objects("")) == 5
    assert await store.objects("nowhere/") == []
    assert (await store.folders(""), await store.folders("t-x/")) == (["t-x", "u-y"], ["0", "1"])
    await store.delete(["t-x/0/a", "never-was", "u-y/0/d"])
    await store.delete(["t-x/0/a"])
    with pytest.raises(ObjectMissingError):
        await store.read_all("t-x/0/a")
    assert await store.folders("") == ["t-x"]


@pytest.mark.parametrize(
    "kind", [pytest.param(azure, marks=pytest.mark.long), gcs, hdfs], ids=lambda kind: kind.__name__
)
async def test_a_store_keeps_to_what_tiering_relies_on(
    kind: Callable[[Path], AbstractAsyncContextManager[RetriedStore]], tmp_path: Path
) -> None:
    async with kind(tmp_path) as store:
        await use(store)


def test_options_reach_the_clients_and_wrong_ones_are_named() -> None:
    for url, options in (
        ("gs://bucket/prefix", {"skip_signature": "true"}),
        ("az://container/prefix", {"account_name": "a", "account_key": "aaaa"}),
        ("abfss://container@account.dfs.core.windows.net/prefix", {"account_key": "aaaa"}),
    ):
        open_store(url, options, QUICK, random.Random(1))
        with pytest.raises(LayoutError, match="no_such_option"):
            open_store(url, {**options, "no_such_option": "1"}, QUICK, random.Random(1))


@pytest.mark.parametrize("url", ["webhdfs:///folder", "webhdfs://host:9870", "webhdfs://host:9870/"])
def test_hdfs_needs_a_host_and_a_folder(url: str) -> None:
    with pytest.raises(LayoutError, match="webhdfs://host:port/folder"):
        open_store(url, {}, QUICK, random.Random(1))


def test_without_the_extra_hdfs_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendal", None)
    monkeypatch.delitem(sys.modules, "tidelog.tier.hdfs", raising=False)
    with pytest.raises(LayoutError, match=r"tidelog\[hdfs\]"):
        open_store("webhdfs://host:9870/folder", {}, QUICK, random.Random(1))


async def test_hdfs_is_reached_over_http_and_tried_as_often_as_any_store() -> None:
    pytest.importorskip("opendal", reason="the extra for HDFS is not installed")
    async with FaultProxy(0, lambda *_: "503") as proxy:
        store = open_store(f"webhdfs://127.0.0.1:{proxy.port}/tide", {"user_name": "me"}, QUICK, random.Random(1))
        with pytest.raises(StoreUnavailableError):
            await store.read_all("t-x/0/a")
    assert [path.partition("?")[0] for _, path in proxy.seen] == ["/webhdfs/v1/tide/t-x/0/a"] * QUICK.tries_max
    assert "user.name=me" in proxy.seen[0][1]


async def test_what_was_begun_on_hdfs_and_never_finished_can_be_removed_as_a_folder(tmp_path: Path) -> None:
    async with hdfs(tmp_path) as store:
        await store.put("t-x/0/a", b"whole")
        left = tmp_path / ".tidelog-unfinished" / "a.1234"
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"half")
        assert await store.folders("") == [left.parent.name, "t-x"]
        assert [each.name for each in await store.objects("t-x/")] == ["t-x/0/a"]
        await store.delete([each.name for each in await store.objects(left.parent.name + "/")])
        assert not left.exists()
