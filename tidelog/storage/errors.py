"""What can go wrong with stored data, by name. Each message says what happened to what, and what to do."""


class StorageError(Exception):
    """Anything storage refuses or cannot do."""


class CorruptDataError(StorageError):
    """Stored data that was durable once is damaged or missing. The node must not serve, vote or lead with it."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(
            f"{path}, byte {position}: {reason}. The data was durable and is damaged: restore the file, or start the "
            "node with an empty data folder, which is then filled again from the other nodes (never remove one stream)"
        )
        self.path = path
        self.position = position
        self.reason = reason


class FormatVersionError(StorageError):
    """Files of a format that this version does not know."""


class DirectoryLockedError(StorageError):
    """Another process works on the same data directory."""


class BatchTooLargeError(StorageError):
    """A batch that does not fit into one segment."""


class SyncFailedError(StorageError):
    """A sync failed. It must not be tried again: the kernel may have dropped what it could not write."""


class TransferError(StorageError):
    """What another replica sent of its files does not fit, or is no longer there: ask it, or another one, again."""


class LogMismatchError(StorageError):
    """An entry that does not follow the log it is appended to: a fault of the program, never of a client."""


class WriterFailedError(StorageError):
    """The disk failed a write or a sync. What it holds is unknown, so the node must stop and recover."""
