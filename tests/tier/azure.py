"""Azurite, Microsoft's own stand-in for Azure's blob service: made with npm on demand, started on a free port."""

import base64
import hashlib
import hmac
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.clients.environments import Unavailable, environment

CONTAINER = "tidelog-test"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and key that Azurite documents for everybody."""
_VERSION = "2021-08-06"
_END_S = 10
INSTALL_S = 300  # some four hundred packages


@contextmanager
def azurite() -> Iterator[int]:
    """The port of a server with one container. Raises Unavailable."""
    node = shutil.which("node")
    if node is None:
        raise Unavailable("there is no node: install Node.js")
    program = environment("azurite", _install) / "node_modules/azurite/dist/src/blob/main.js"
    arguments = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    place = ["--blobHost", "127.0.0.1", "--blobPort", "0"]
    process = subprocess.Popen(
        [node, str(program), *arguments, *place], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        port = _port_said(process)
        _make_container(port)
        yield port
    finally:
        process.terminate()
        process.wait(_END_S)
        if process.stdout is not None:
            process.stdout.close()


def azure_options(port: int) -> dict[str, str]:
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint, "allow_http": "true"}


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("there is no npm: install Node.js with npm")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`npm install azurite` took more than {INSTALL_S} s") from None
    if done.returncode != 0:
        raise Unavailable(f"`npm install azurite` failed: {done.stderr.decode(errors='replace')[-400:]}")


def _port_said(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"successfully listens on http://127\.0\.0\.1:(\d+)", line)
        if found:
            return int(found[1])
    raise Unavailable("Azurite did not start")


def _make_container(port: int) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signed = "PUT" + 12 * "\n" + f"x-ms-date:{date}\nx-ms-version:{_VERSION}\n{resource}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": _VERSION,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
    }
    url = f"http://127.0.0.1:{port}/{ACCOUNT}/{CONTAINER}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)):
        pass
