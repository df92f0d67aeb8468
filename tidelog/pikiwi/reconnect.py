"""When to try again after a connection ended, and when to give up: pure arithmetic.

Three kinds of failure, each with its own bound:

* **not reached**: no connection, or none that got as far as the handshake. Waits double up to `delay_s_max`; after
  `unreached_max` in a row the receiver ends, for its supervisor to start again;
* **fruitless**: connected and shaken hands, and then nothing became durable and the connection did not last
  `lasting_s`. A master that closes on us every time (a position it stumbles over, a window it does not agree about)
  must not be asked for ever: after `fruitless_max` in a row the receiver ends;
* **name taken**: the master has a slave of our name. It forgets a dead one in 20 s; waits are `name_taken_delay_s`,
  and after `name_taken_max` it is somebody else's name.

A connection that bore fruit, or lasted, clears all three.
"""

from dataclasses import dataclass

from tidelog.pikiwi.errors import LinkError, PikiwiError
from tidelog.pikiwi.link import AlreadyRegistered


@dataclass(frozen=True, slots=True)
class ReconnectSettings:
    delay_s_first: float = 0.5
    delay_s_max: float = 30.0
    unreached_max: int = 125  # about an hour
    fruitless_max: int = 8
    lasting_s: float = 30.0
    name_taken_delay_s: float = 5.0
    name_taken_max: int = 8  # 40 s: twice what a master needs to forget


class Reconnects:
    def __init__(self, settings: ReconnectSettings) -> None:
        self._settings = settings
        self._unreached = 0
        self._fruitless = 0
        self._name_taken = 0

    def after(self, error: PikiwiError, *, reached: bool, fruitful: bool, lasted_s: float) -> float:
        """Seconds to wait before the next try; raises when there should be none."""
        settings = self._settings
        if isinstance(error, AlreadyRegistered):
            self._name_taken += 1
            if self._name_taken >= settings.name_taken_max:
                raise error
            return settings.name_taken_delay_s
        if not isinstance(error, LinkError):
            raise error
        self._name_taken = 0
        if fruitful or (reached and lasted_s >= settings.lasting_s):
            self._unreached = self._fruitless = 0
            return settings.delay_s_first
        if reached:
            self._unreached = 0
            self._fruitless += 1
            return self._delay_s(error, self._fruitless, settings.fruitless_max)
        self._unreached += 1
        return self._delay_s(error, self._unreached, settings.unreached_max)

    def _delay_s(self, error: LinkError, tries: int, tries_max: int) -> float:
        if tries >= tries_max:
            raise LinkError(f"given up after {tries} tries in a row; the last one: {error}") from error
        return min(self._settings.delay_s_max, self._settings.delay_s_first * 2.0 ** (tries - 1))
