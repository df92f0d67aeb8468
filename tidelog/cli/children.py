"""Processes that this one starts end with it, however it ends."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be


def end_with_parent() -> None:
    """In the child, between fork and exec: should its parent be killed, it gets SIGTERM from the kernel."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
