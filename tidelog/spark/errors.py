"""What can go wrong between Spark and a log. Each message says what happened to what, and what to do.

Spark shows a failed task's message to the user, so these are the last word of a query: they name topic, partition and
offset (or position), never only a code.
"""


class LogSourceError(Exception):
    """The parent of all of them."""


class BadOption(LogSourceError, ValueError):
    """An option that is unknown, malformed, or does not go together with another."""


class NoAnswer(LogSourceError):
    """The cluster did not answer, or not usefully, for as long as was allowed."""


class DataLost(LogSourceError):
    """Offsets that the query has still to read are no longer there."""


class RowRefused(LogSourceError):
    """A row that cannot become a record: too large, without a topic, for a partition that does not exist."""


class DeliveryFailed(LogSourceError):
    """Rows could not be written for as long as was allowed, or the cluster refuses them."""


class RowsDiffer(LogSourceError):
    """A retry brings other rows than those its first attempt has written; going on would lose or double some."""


class BadCommitRecord(LogSourceError):
    """The sink's commit record does not fit the query that asks for it, or cannot be read."""
