"""Connections that are encrypted (TLS) or authenticated (SASL), as Kafka's clients make them.

A link wraps its socket (`wrapped`), asks which requests the node serves, and then says who it is (`Sasl`): first which
way it will (SaslHandshake), then messages back and forth (SaslAuthenticate). Ways: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
(RFC 5802; names and passwords are taken as they are, as Kafka takes them).

A node that refuses us, or that we do not trust, is an error at once: another try would not help.
"""

import base64
import hashlib
import hmac
import secrets
import socket
import struct
from collections.abc import Callable

from tidelog.spark.errors import LogSourceError
from tidelog.spark.kernel.security_options import Security
from tidelog.wire.errors import ErrorCode

ITERATIONS_MAX = 1 << 20  # of a password's hash: a second's work, and not an hour's because a node says so
NONCE_BYTES = 18

_HANDSHAKE = (17, 1)  # key and version of the request
_AUTHENTICATE = (36, 0)
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")

Exchange = Callable[[int, int, bytes], bytes]
"""Key and version of a request and its content, for the content of the answer."""


class AccessRefused(LogSourceError):
    """A node does not let us in, or cannot show that it is who it should be."""


def wrapped(plain: socket.socket, host: str, security: Security) -> socket.socket:
    """The socket, encrypted if it is to be."""
    if not security.tls:
        return plain
    import ssl  # noqa: PLC0415 - most links need none of it

    try:
        context = ssl.create_default_context(cafile=security.ca_file, cadata=security.ca_text)
        context.check_hostname = security.check_name
        if security.certificate_file is not None:
            context.load_cert_chain(security.certificate_file, password=lambda: security.key_password or "")
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise AccessRefused(
            f"{host}: its certificate is not trusted ({error.verify_message}): see kafka.ssl.truststore.location and "
            "kafka.ssl.endpoint.identification.algorithm"
        ) from None
    except FileNotFoundError:
        files = ", ".join(filter(None, (security.ca_file, security.certificate_file)))
        plain.close()
        raise AccessRefused(f"kafka.ssl.…: not all of {files} are here") from None


class Sasl:
    """Says who we are over one connection."""

    def __init__(self, address: str, security: Security, exchange: Exchange) -> None:
        self._address = address
        self._security = security
        self._exchange = exchange

    def run(self) -> None:
        security = self._security
        if security.mechanism is None:
            return
        answer = self._exchange(*_HANDSHAKE, _text(security.mechanism))
        (code,) = _I16.unpack_from(answer)
        if code:
            raise AccessRefused(f"{self._address}: it does not take {security.mechanism}, but {_names(answer)}")
        if security.mechanism == "PLAIN":
            self._send(f"\0{security.user}\0{security.password}".encode())
        else:
            self._scram("sha256" if security.mechanism == "SCRAM-SHA-256" else "sha512")

    def _scram(self, name: str) -> None:
        security, nonce = self._security, base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
        user = security.user.replace("=", "=3D").replace(",", "=2C")
        first = f"n={user},r={nonce}"
        challenge = self._send(f"n,,{first}".encode()).decode()
        fields = self._fields(challenge)
        salt, iterations = base64.b64decode(fields.get("s", "")), fields.get("i", "")
        told = fields.get("r", "")
        if not told.startswith(nonce) or not salt or not iterations.isdecimal() or int(iterations) > ITERATIONS_MAX:
            raise AccessRefused(f"{self._address}: it answers with no challenge of SCRAM")
        salted = hashlib.pbkdf2_hmac(name, security.password.encode(), salt, int(iterations))
        last = f"c=biws,r={told}"
        message = f"{first},{challenge},{last}".encode()
        key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, key).digest(), message, name)
        proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
        end = self._fields(self._send(f"{last},p={base64.b64encode(proof).decode()}".encode()).decode())
        expected = hmac.digest(hmac.digest(salted, b"Server Key", name), message, name)
        if not hmac.compare_digest(base64.b64decode(end.get("v", "")), expected):
            raise AccessRefused(f"{self._address}: it does not know our password, so it is not who it says")

    def _fields(self, message: str) -> dict[str, str]:
        return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}

    def _send(self, content: bytes) -> bytes:
        answer = self._exchange(*_AUTHENTICATE, _I32.pack(len(content)) + content)
        (code,) = _I16.unpack_from(answer)
        (size,) = _I16.unpack_from(answer, 2)
        at = 4 + max(size, 0)
        if code:
            why = answer[4:at].decode(errors="replace") or f"error {code}"
            name = ErrorCode.SASL_AUTHENTICATION_FAILED.name if code == ErrorCode.SASL_AUTHENTICATION_FAILED else code
            raise AccessRefused(f"{self._address}: it does not let {self._security.user} in: {name}: {why}")
        (size,) = _I32.unpack_from(answer, at)
        return answer[at + 4 : at + 4 + max(size, 0)]


def _text(text: str) -> bytes:
    return _I16.pack(len(text.encode())) + text.encode()


def _names(answer: bytes) -> str:
    """The ways that a node takes, of its answer to the handshake."""
    (count,) = _I32.unpack_from(answer, 2)
    at, names = 6, []
    for _ in range(count):
        (size,) = _I16.unpack_from(answer, at)
        names.append(answer[at + 2 : at + 2 + size].decode(errors="replace"))
        at += 2 + size
    return ", ".join(names) or "none"
