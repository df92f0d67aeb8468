"""How this package says no: one small hierarchy, each message says what happened to what, and what to do about it."""

from collections.abc import Mapping


class RegionWalError(Exception):
    """Base of everything this package raises."""


class SettingsError(RegionWalError):
    """A setting, or an argument of a call, that cannot work; the message says which."""


class Closed(RegionWalError):
    """The WAL, or the region in it, was closed; nothing was done."""


class ReadOnly(RegionWalError):
    """The WAL was opened to look only (`Settings.read_only`), and this would have written."""


class Fenced(RegionWalError):
    """Another process has opened the region. What this process wrote since then does not count and never will.

    The region stays unusable here until `open_region` is called, which takes it back from the other process. `written`
    is as in WriteFailed: a write may have got its beginning into the log before the other process came.
    """

    def __init__(self, message: str, written: Mapping[int, int] | None = None) -> None:
        super().__init__(message)
        self.written = dict(written or {})


class Timeout(RegionWalError):
    """The log did not answer in time. A read, a snapshot or an open can simply be tried again."""


class LogFailed(RegionWalError):
    """The log refused, with an error that waiting would not cure; the message has the log's own words."""


class WriteFailed(RegionWalError):
    """A write did not get into the log, or only its beginning did; what is missing can no longer get there.

    `written` has the last sequence number that did get there, for every table of the write that has one. Those entries
    count: they are read and replayed as any other.
    """

    def __init__(self, message: str, written: Mapping[int, int]) -> None:
        super().__init__(message)
        self.written = dict(written)


class WriteUnknown(RegionWalError):
    """A write may be in the log or not, and the log cannot be asked now.

    The region finds out before its next write, and before `sequence_num` answers again: no sequence number is ever
    given to two entries.
    """


class BadMark(RegionWalError):
    """A mark above the last sequence number of its table: it would delete what is not written yet."""


class CorruptRecord(RegionWalError):
    """A record that no writer of this format makes."""

    def __init__(self, topic: str, offset: int, why: str) -> None:
        super().__init__(f"{topic} has a record at offset {offset} that cannot be read: {why}")
        self.topic = topic
        self.offset = offset
        self.why = why


class UnsupportedVersion(CorruptRecord):
    """A record in a newer format than this program knows: it needs a newer program."""


class LogLost(RegionWalError):
    """The log no longer has entries that were never marked as deleted.

    Somebody set a retention on the topic, trimmed it, or it lost its replicas. `open_region(…, accept_loss=True)` goes
    on with what is left.
    """
