"""Which partition of the internal stream holds a group's state.

Kafka's rule, so that its tools agree: Java's `String.hashCode` of the group id, its absolute value, modulo partitions.
The smallest int has no absolute value and counts as 0 (`Utils.abs`).
"""

_INT_MIN = -(2**31)


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, in wrapping signed 32-bit arithmetic."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    value = 0
    for unit in units.tolist():
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_of(group_id: str, partitions: int) -> int:
    value = java_hash(group_id)
    return (0 if value == _INT_MIN else abs(value)) % partitions
