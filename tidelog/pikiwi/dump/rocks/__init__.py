"""A read-only reader of one column family of a RocksDB checkpoint, for those that no Python binding can open.

A binding can open a column family only with the comparator it was written with, and none that is kept today lets Python
give one. PikiwiDB has its own comparator for the rows of lists, so those are read here; all the rest is read by RocksDB
itself (`tidelog.pikiwi.dump.open`). What is read, bottom up: `records.py`, the record format of MANIFEST and log files;
`manifest.py`, which files make up a column family; `table.py`, one sorted file; `batches.py`, what a log holds;
`order.py`, the comparators; `rows.py`, all of them merged, newest wins.

Nothing is guessed: every block and record is checked against its checksum, every row against the order, and what this
reader does not know (a newer table format, merge operands, blob files, …) is an error that names the file.
"""

from tidelog.pikiwi.dump.rocks.manifest import ColumnFamily, read_manifest
from tidelog.pikiwi.dump.rocks.order import BYTEWISE, ORDERS, Order
from tidelog.pikiwi.dump.rocks.rows import ColumnFamilyRows

__all__ = ["BYTEWISE", "ORDERS", "ColumnFamily", "ColumnFamilyRows", "Order", "read_manifest"]
