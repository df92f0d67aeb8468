"""Ports for servers that must be told theirs before they start.

They lie below the range the system takes for clients' own ends, else an outgoing connection may sit on one of them.
"""

import random
import socket

FIRST, LAST = 10_000, 30_000
TRIES_MAX = 1_000

_taken: set[int] = set()
_random = random.Random()  # not seeded: two test processes must not try the same ones


def free_port() -> int:
    """One that nobody listens on now, and that was not given out before."""
    for _ in range(TRIES_MAX):
        port = _random.randrange(FIRST, LAST)
        if port not in _taken and _is_free(port):
            _taken.add(port)
            return port
    raise RuntimeError(f"no free port in {FIRST}..{LAST} after {TRIES_MAX} tries")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
