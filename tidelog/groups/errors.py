"""How this package says no by raising.

Whatever a client did wrong is a value, an `ErrorCode`; what raises is a journal that cannot be read, or a setting that
makes no sense.
"""


class GroupsError(Exception):
    """Base of everything this package raises."""


class JournalError(GroupsError):
    """Bytes that are no record of the journal; the message says which and why. Loading must stop: state is unknown."""


class GroupSettingsError(GroupsError):
    """A setting that cannot work; the message says which."""
