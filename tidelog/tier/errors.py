"""What can go wrong between a stream and its history in the object store, by name."""


class TierError(Exception):
    """Anything tiering refuses or cannot do."""


class StoreError(TierError):
    """A call of the object store that did not do what it was asked, after all its tries."""


class ObjectMissingError(StoreError):
    """There is no such object."""


class StoreTimeoutError(StoreError):
    """No answer within the call's deadline. It may have been done all the same."""


class StoreRefusedError(StoreError):
    """The store knows us and says no (rights, quota, a name it cannot take): trying again does not help."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached or is overloaded: later it may work."""


class ObjectDamagedError(TierError):
    """An object that is not what was put there: its checksum, its length or its seal says so."""


class UnknownKeyError(TierError):
    """An object is sealed with a key that the key ring does not hold: add the key back."""


class LayoutError(TierError):
    """A name, an index object or a manifest of a form that this version does not know."""
