"""How this package says no: one small hierarchy, each with the exit status that `tidelog pikiwi` ends with.

A message says what happened to what, and what to do about it. Whether a receiver tries again is decided by the class:
`LinkError` passes (reconnect with back-off), everything else ends the receiver, since trying again would find the same.

| status | what it means for whoever started the process |
| --- | --- |
| 1 | something that may pass did not, within its bounds: start it again |
| 2 | a setting is wrong: correct it |
| 3 | the master refused, or speaks another protocol: look at the master |
| 4 | the master cannot go on from our position: choose a start or a full sync |
| 5 | our own files (WAL, checkpoint, dump) cannot be used: look at the disk |
"""

from pathlib import Path

EXIT_PASSING = 1
EXIT_SETTINGS = 2
EXIT_SOURCE = 3
EXIT_POSITION = 4
EXIT_FILES = 5


class PikiwiError(Exception):
    """Base of everything this package raises."""

    exit_status = EXIT_PASSING


class ConfigError(PikiwiError):
    """A setting that is unknown, malformed, or does not go with another; the message names it."""

    exit_status = EXIT_SETTINGS


class FilterError(ConfigError):
    """A filter that cannot be understood. An error at the start, since a typo would widen or empty the filter."""


class LinkError(PikiwiError):
    """The connection ended or fell silent; passes, with back-off."""


class ProtocolError(PikiwiError):
    """The other side sent what its protocol does not allow: lengths, protobuf, order of messages."""

    exit_status = EXIT_SOURCE


class SourceError(PikiwiError):
    """The master said no: password, unknown database, registered under our name already."""

    exit_status = EXIT_SOURCE


class SyncPointError(PikiwiError):
    """The master cannot go on from the position that was asked for, and the settings forbid a full sync."""

    exit_status = EXIT_POSITION


class LineageChanged(PikiwiError):
    """The master's replication_id is not the one of our checkpoint: its positions mean something else."""

    exit_status = EXIT_POSITION


class WalError(PikiwiError):
    """The WAL cannot be written or does not go with what it is asked for."""

    exit_status = EXIT_FILES


class CorruptWal(WalError):
    """A record that was whole once is damaged; a torn tail is none, it is repaired."""

    def __init__(self, path: Path, offset: int, why: str) -> None:
        super().__init__(f"{path}: damaged at byte {offset:,}: {why}")
        self.path = path
        self.offset = offset
        self.why = why


class CheckpointError(PikiwiError):
    """The checkpoint cannot be read or written, or belongs to another source."""

    exit_status = EXIT_FILES


class DumpError(PikiwiError):
    """A dump could not be fetched or read."""

    exit_status = EXIT_FILES


class RespError(PikiwiError):
    """Bytes that are no RESP command, or one beyond the limits."""

    exit_status = EXIT_SOURCE
