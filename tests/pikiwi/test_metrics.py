"""Prometheus metrics: the text, and the small server."""

import asyncio
import re

import pytest

from tests.pikiwi.test_status import streaming
from tests.ports import free_port
from tidelog.pikiwi import metrics
from tidelog.pikiwi.errors import ConfigError
from tidelog.pikiwi.metrics import render, serving
from tidelog.pikiwi.progress import Progress

LINE = re.compile(r'[a-z_]+\{source="[^"]*"(,db="[^"]*")?\} -?[0-9.e+-]+')


def test_metrics_are_what_progress_holds() -> None:
    lines = render(streaming(), 1000.0).splitlines()
    label = 'source="10.0.0.1:9221",db="db0"'

    assert 'tidelog_pikiwi_connected{source="10.0.0.1:9221"} 1' in lines
    assert f"tidelog_pikiwi_items_total{{{label}}} 2" in lines
    assert f"tidelog_pikiwi_lag_bytes{{{label}}} 200" in lines
    assert f"tidelog_pikiwi_lag_seconds{{{label}}} 10.0" in lines
    assert f"tidelog_pikiwi_durable_offset{{{label}}} 300" in lines
    assert f"tidelog_pikiwi_wal_bytes{{{label}}} 292" in lines
    assert f"tidelog_pikiwi_sync_seconds_total{{{label}}} 0.25" in lines


def test_every_line_is_in_the_format_and_every_metric_has_help_and_type() -> None:
    named: list[str] = []
    for line in render(streaming(), 1000.0).splitlines():
        if line.startswith("# HELP "):
            named.append(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            name, kind = line.split(" ")[2:]
            assert name == named[-1]
            assert kind == ("counter" if name.endswith("_total") else "gauge")
        else:
            assert LINE.fullmatch(line), line
            assert line.startswith(named[-1] + "{")
    assert len(named) == len(set(named))


def test_what_is_not_known_is_left_out_and_labels_are_escaped() -> None:
    progress = Progress('a"b\\c\nd')
    progress.database("db0")
    text = render(progress, 0.0)

    assert 'source="a\\"b\\\\c\\nd"' in text
    assert "tidelog_pikiwi_lag_bytes{" not in text
    assert "tidelog_pikiwi_connected{" in text


async def ask(port: int, request: bytes) -> bytes:
    """What comes back until the server hangs up; nothing when it does so with our words unread."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def served(progress: Progress, *requests: bytes) -> list[bytes]:
    async def scenario() -> list[bytes]:
        async with serving(free_port(), progress) as port:
            assert port is not None
            return [await ask(port, request) for request in requests]

    return asyncio.run(scenario())


def test_the_server_answers_scrapers_and_health_checks() -> None:
    progress = streaming()
    scraped, healthy, other, posted, head = served(
        progress,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz?x=1 HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\n\r\n",
        b"HEAD /metrics HTTP/1.1\r\n\r\n",
    )

    assert scraped.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    header, body = scraped.split(b"\r\n\r\n", 1)
    assert f"Content-Length: {len(body)}".encode() in header
    assert b"tidelog_pikiwi_items_total" in body
    assert healthy.startswith(b"HTTP/1.1 200")
    assert other.startswith(b"HTTP/1.1 404")
    assert posted.startswith(b"HTTP/1.1 405")
    assert head.endswith(b"\r\n\r\n")

    progress.lost("gone")
    (unhealthy,) = served(progress, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert unhealthy.startswith(b"HTTP/1.1 503")
    assert unhealthy.endswith(b"waiting gone\n")


@pytest.mark.parametrize("request_", [b"x" * 100_000, b"\0\xff" * 10 + b"\r\n\r\n"])
def test_nonsense_ends_the_connection_and_harms_nobody(request_: bytes) -> None:
    refused, answered = served(streaming(), request_, b"GET /metrics HTTP/1.1\r\n\r\n")

    assert b"200 OK" not in refused
    assert answered.startswith(b"HTTP/1.1 200")


def test_a_client_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_S_MAX", 0.01)

    assert served(streaming(), b"GET /metr") == [b""]


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CONNECTIONS_MAX", 0)

    assert served(streaming(), b"GET /metrics HTTP/1.1\r\n\r\n") == [b""]


def test_no_port_no_server() -> None:
    async def scenario() -> int | None:
        async with serving(0, streaming()) as port:
            return port

    assert asyncio.run(scenario()) is None


def test_a_port_that_is_taken_is_a_setting_to_correct() -> None:
    async def scenario() -> None:
        async with serving(free_port(), streaming()) as port:
            assert port is not None
            async with serving(port, streaming()):
                pass

    with pytest.raises(ConfigError, match=r"cannot serve metrics on 127.0.0.1:.* set another metrics_port"):
        asyncio.run(scenario())
