"""Links that are encrypted and authenticated, against a node of the test's own that holds them to it."""

import base64
import hashlib
import hmac
import ipaddress
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tidelog.spark.cluster import Cluster
from tidelog.spark.kernel.options import read_options, write_options
from tidelog.spark.kernel.security_options import PLAINTEXT, Security
from tidelog.spark.link import Link, LinkFailed
from tidelog.spark.security import AccessRefused, wrapped
from tidelog.wire import messages as m
from tidelog.wire.frames import decode_request, encode_response

USER, PASSWORD = "ada=,", 'pen"cil'
ITERATIONS = 4096
REQUEST_S = 10.0


class Node:
    """Answers ApiVersions and Metadata, the latter only to those who have said who they are, if it asks for that."""

    def __init__(self, mechanism: str | None, context: ssl.SSLContext | None, *, honest: bool = True) -> None:
        self._mechanism = mechanism
        self._context = context
        self._honest = honest
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(REQUEST_S)
                with suppress(OSError):
                    context = self._context
                    self._serve(connection if context is None else context.wrap_socket(connection, server_side=True))
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        known, steps = self._mechanism is None, self._steps()
        with connection:
            while True:
                (size,) = struct.unpack(">i", _read(connection, 4))
                frame = _read(connection, size)
                key, _, number, name = struct.unpack_from(">hhih", frame)
                content = frame[10 + name :]
                if key == 17:
                    (length,) = struct.unpack_from(">h", content)
                    takes = content[2 : 2 + length].decode() == self._mechanism
                    there = (self._mechanism or "").encode()
                    answer = struct.pack(">hih", 0 if takes else 33, 1, len(there)) + there
                elif key == 36:
                    code, told, known = next(steps)(content[4:])
                    why = b"no such user" if code else b""
                    answer = struct.pack(">hh", code, len(why)) + why + struct.pack(">i", len(told)) + told
                else:
                    header, request = decode_request(frame)
                    if isinstance(request, m.MetadataRequest) and not known:
                        return
                    connection.sendall(b"".join(encode_response(header, self._answer(request))))
                    continue
                connection.sendall(struct.pack(">ii", 4 + len(answer), number) + answer)

    def _answer(self, request: object) -> object:
        if isinstance(request, m.ApiVersionsRequest):
            spoken = [m.ApiVersion(api_key=3, min_version=0, max_version=9)]
            return m.ApiVersionsResponse(api_keys=spoken)
        return m.MetadataResponse(brokers=[], cluster_id="c", topics=[])

    def _steps(self):
        if self._mechanism == "PLAIN":
            right = f"\0{USER}\0{PASSWORD}".encode()
            yield lambda told: (0, b"", True) if told == right else (58, b"", False)
            return
        name = "sha256" if self._mechanism == "SCRAM-SHA-256" else "sha512"
        salted = hashlib.pbkdf2_hmac(name, PASSWORD.encode(), b"salt", ITERATIONS)
        heard: dict[str, str] = {}

        def challenge(told: bytes) -> tuple[int, bytes, bool]:
            heard["first"] = told.decode().removeprefix("n,,")
            assert heard["first"].startswith("n=ada=3D=2C,r=")
            nonce = heard["first"].rpartition("r=")[2] + "more"
            heard["challenge"] = f"r={nonce},s={base64.b64encode(b'salt').decode()},i={ITERATIONS}"
            return 0, heard["challenge"].encode(), False

        def check(told: bytes) -> tuple[int, bytes, bool]:
            last, _, proof = told.decode().rpartition(",p=")
            message = f"{heard['first']},{heard['challenge']},{last}".encode()
            stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
            signature = hmac.digest(stored, message, name)
            key = bytes(one ^ other for one, other in zip(base64.b64decode(proof), signature, strict=True))
            if hashlib.new(name, key).digest() != stored:
                return 58, b"", False
            known = hmac.digest(salted if self._honest else b"guess", b"Server Key", name)
            return 0, b"v=" + base64.b64encode(hmac.digest(known, message, name)), True

        yield challenge
        yield check


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


@contextmanager
def node(mechanism: str | None = None, context: ssl.SSLContext | None = None, *, honest: bool = True) -> Iterator[int]:
    made = Node(mechanism, context, honest=honest)
    try:
        yield made.port
    finally:
        made.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, with its key, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "node.pem"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file.write_bytes(made.public_bytes(encoding) + key.private_bytes(encoding, form, serialization.NoEncryption()))
    return file


@pytest.fixture
def served(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def ask(port: int, security: Security) -> str | None:
    link = Link("127.0.0.1", port, REQUEST_S, security)
    try:
        return link.ask(m.MetadataRequest(topics=[])).cluster_id
    finally:
        link.close()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", None])
def test_who_is_known_is_let_in(mechanism: str | None, tls: bool, certificate: Path, served: ssl.SSLContext):
    security = Security(tls, mechanism, USER, PASSWORD, ca_file=str(certificate) if tls else None)
    with node(mechanism, served if tls else None) as port:
        assert ask(port, security) == "c"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_who_is_not_known_is_told_so_at_once(mechanism: str):
    security = Security(False, mechanism, USER, "guess")
    with node(mechanism) as port:
        with pytest.raises(AccessRefused, match="does not let ada=, in: SASL_AUTHENTICATION_FAILED: no such user"):
            ask(port, security)
        with Cluster([("127.0.0.1", port)], REQUEST_S, security=security) as cluster, pytest.raises(AccessRefused):
            cluster.topics(None)
        with pytest.raises(LinkFailed):  # and nothing is served to those who do not say who they are
            ask(port, PLAINTEXT)


def test_a_way_that_the_node_does_not_take_is_told_with_those_that_it_does():
    with node("SCRAM-SHA-256") as port, pytest.raises(AccessRefused, match="does not take PLAIN, but SCRAM-SHA-256"):
        ask(port, Security(False, "PLAIN", USER, PASSWORD))


def test_a_node_must_know_the_password_too():
    with node("SCRAM-SHA-256", honest=False) as port, pytest.raises(AccessRefused, match="is not who it says"):
        ask(port, Security(False, "SCRAM-SHA-256", USER, PASSWORD))


def test_a_node_that_is_not_trusted_is_refused(certificate: Path, served: ssl.SSLContext):
    with node(None, served) as port:
        with pytest.raises(AccessRefused, match="certificate is not trusted"):
            ask(port, Security(True))
        with pytest.raises(AccessRefused, match="not all of /nowhere are here"):
            ask(port, Security(True, ca_file="/nowhere"))
        trusting = Security(True, ca_text=certificate.read_text().partition("-----BEGIN PRIVATE")[0])
        assert ask(port, trusting) == "c"
        with pytest.raises(LinkFailed):
            ask(port, PLAINTEXT)


def test_a_nodes_name_is_checked_unless_that_is_switched_off(certificate: Path, served: ssl.SSLContext):
    with node(None, served) as port:
        trusting = Security(True, ca_file=str(certificate))
        with pytest.raises(AccessRefused, match="certificate is not trusted"):
            _named("elsewhere", port, trusting)
        _named("elsewhere", port, replace(trusting, check_name=False))


def _named(host: str, port: int, security: Security) -> None:
    plain = socket.create_connection(("127.0.0.1", port), timeout=REQUEST_S)
    wrapped(plain, host, security).close()


def test_options_say_who_we_are():
    jaas = r'org.apache.kafka.common.security.scram.ScramLoginModule required username="ada=," password="pen\"cil";'
    given = {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": jaas,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    expected = Security(True, "SCRAM-SHA-512", USER, PASSWORD, "/ca.pem", check_name=False)
    options = read_options({**given, "subscribe": "t"}, streaming=None)
    assert options.security == write_options({**given, "topic": "t"}).security == expected
    assert "cil" not in repr(options)
    assert write_options({"kafka.bootstrap.servers": "h:1"}).security == PLAINTEXT
