"""TLS and SASL among the options, by the names that Kafka's clients have.

What is Java's own is read where it can be (the user in `kafka.sasl.jaas.config`) and refused where not (its key stores:
give PEM files). Every other option that begins with `kafka.ssl.` or `kafka.sasl.` is unknown, and so an error: a job
that believes itself protected must not be mistaken.
"""

import re
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.spark.errors import BadOption

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECURITY_OPTIONS = (
    "kafka.security.protocol", "kafka.sasl.mechanism", "kafka.sasl.jaas.config", "kafka.ssl.truststore.type",
    "kafka.ssl.truststore.location", "kafka.ssl.truststore.certificates", "kafka.ssl.keystore.type",
    "kafka.ssl.keystore.location", "kafka.ssl.key.password", "kafka.ssl.endpoint.identification.algorithm",
)  # fmt: skip

_JAAS = re.compile(r'\s(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Security:
    tls: bool = False
    mechanism: str | None = None
    """None: nobody asks who we are."""
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str | None = None
    ca_text: str | None = None
    """Certificates as PEM; without either those that the machine trusts."""
    certificate_file: str | None = None
    """Our own, with its key, as PEM."""
    key_password: str | None = field(default=None, repr=False)
    check_name: bool = True


PLAINTEXT = Security()


class Texts(Protocol):
    def text(self, name: str) -> str | None: ...


def security_of(options: Texts) -> Security:
    protocol = (options.text("kafka.security.protocol") or "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise BadOption(f"kafka.security.protocol: {protocol}; there are {', '.join(PROTOCOLS)}")
    tls, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for name in SECURITY_OPTIONS:
        wanted = tls if name.startswith("kafka.ssl.") else sasl if name.startswith("kafka.sasl.") else True
        if options.text(name) is not None and not wanted:
            raise BadOption(f"{name}: it means nothing with kafka.security.protocol={protocol}")
    mechanism, user, password = _user(options) if sasl else (None, "", "")
    for store in ("truststore", "keystore"):
        kind = options.text(f"kafka.ssl.{store}.type")
        if (options.text(f"kafka.ssl.{store}.location") or kind) and (kind or "JKS").upper() != "PEM":
            raise BadOption(f"kafka.ssl.{store}.type: only PEM can be read: give PEM, and a file of that kind")
    algorithm = options.text("kafka.ssl.endpoint.identification.algorithm")
    if algorithm not in {None, "", "https"}:
        raise BadOption(f"kafka.ssl.endpoint.identification.algorithm: {algorithm!r}; there are https and nothing")
    return Security(
        tls, mechanism, user, password, options.text("kafka.ssl.truststore.location"),
        options.text("kafka.ssl.truststore.certificates"), options.text("kafka.ssl.keystore.location"),
        options.text("kafka.ssl.key.password"), algorithm != "",
    )  # fmt: skip


def _user(options: Texts) -> tuple[str, str, str]:
    mechanism = (options.text("kafka.sasl.mechanism") or "").upper()
    if mechanism not in MECHANISMS:
        raise BadOption(f"kafka.sasl.mechanism: {mechanism or 'it is missing'}; there are {', '.join(MECHANISMS)}")
    found = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS.findall(_jaas(options))}
    if found.keys() != {"username", "password"}:
        raise BadOption('kafka.sasl.jaas.config: write … required username="…" password="…";')
    return mechanism, found["username"], found["password"]


def _jaas(options: Texts) -> str:
    return options.text("kafka.sasl.jaas.config") or ""
