"""Coroutines run as in tests/server: each in a loop of its own, and the servers it started stop with it."""

from tests.server.conftest import cluster, pytest_pyfunc_call, world

__all__ = ["cluster", "pytest_pyfunc_call", "world"]
