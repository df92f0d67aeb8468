"""The receiver beside the pipeline: a process of its own, so that nothing of Spark's can hold up the master's link.

How it is started is up to whoever runs the pipeline. One that ends by itself with a status that may pass (1) is started
again, `RESTARTS_MAX` times in a row; every other end is the pipeline's end too, with the same status.
"""

import logging
import subprocess
import time
from collections.abc import Callable

from tidelog.pikiwi.errors import EXIT_PASSING, PikiwiError

RESTARTS_MAX = 5
PAUSE_S_FIRST, PAUSE_S_MAX = 1.0, 30.0
LIVED_S_MIN = 60.0  # one that has lived so long had a good start
STOP_S_MAX = 30.0

StartReceiver = Callable[[], "subprocess.Popen[bytes]"]
"""Starts it as a process that gets no signals of a terminal, and that ends with us also when we are killed."""

_log = logging.getLogger(__name__)


class ReceiverEnded(PikiwiError):
    """The receiver cannot go on; it has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the receiver has ended with status {status}; what it said stands above")
        self.exit_status = status if status > 0 else EXIT_PASSING


class ReceiverProcess:
    def __init__(self, launch: StartReceiver) -> None:
        self._launch = launch
        self._restarts = 0
        self._again_s: float | None = None  # when it is started again
        self._start()

    def _start(self) -> None:
        self._begun_s = time.monotonic()
        self._again_s = None
        self._process = self._launch()

    def look(self) -> None:
        """Now and then: starts one that ended again, or raises ReceiverEnded."""
        now_s = time.monotonic()
        if self._again_s is not None:
            if now_s >= self._again_s:
                self._start()
            return
        status = self._process.poll()
        if status is None:
            return
        if now_s - self._begun_s > LIVED_S_MIN:
            self._restarts = 0
        if status not in (0, EXIT_PASSING) or self._restarts >= RESTARTS_MAX:
            raise ReceiverEnded(status)
        pause_s = min(PAUSE_S_FIRST * 2**self._restarts, PAUSE_S_MAX)
        self._restarts += 1
        self._again_s = now_s + pause_s
        _log.warning("the receiver ended with status %d; it is started again in %.0f s", status, pause_s)

    def stop(self) -> None:
        """It makes durable what it has, and takes leave of the master."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            _log.error("the receiver did not stop within %.0f s: it is killed", STOP_S_MAX)
            self._process.kill()
            self._process.wait()
