"""The two ways in which consensus says no by raising.

Operating conditions (not the leader, disk full, too busy) are never exceptions: they are values, see `effects.Refusal`.
"""


class RaftError(Exception):
    """Base of everything this package raises."""


class RaftInvariantError(RaftError):
    """A rule that consensus rests on does not hold. Nothing this node says can be trusted: stop it, never retry.

    An exception and not an `assert`, because it must also stop a node that runs under `python -O`.
    """


class ConfigurationError(RaftError):
    """A membership change that cannot be made; the message says why. Nothing was changed."""
