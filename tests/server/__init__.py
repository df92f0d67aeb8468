"""The server over real sockets and files, in the test's own event loop, with a disk that obeys the test.

client.py         a raw client: pipelines, sends bytes that are no protocol, is slow, stops reading
controlled_disk.py  the real disk, whose syncs wait, writes fail and reads are slow when the test says so
world.py          the broker and its listener on a free port; as many as a test wants, one after the other
"""
