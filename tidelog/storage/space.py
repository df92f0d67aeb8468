"""Room that is kept on the disk for what must still be written when clients' records no longer may.

On a disk that is full to the last byte no leader can be elected and no log start moved, so nothing could be deleted,
ever. Therefore clients' records are to be refused a little earlier: with less than a reserve free, the disk is `short`.
Replication goes on, since what a leader has accepted already must come through, and so do entries of our own, which
are small. Files are not written ahead into the reserve, and those kept for reuse are given back.

A disk that cannot be measured is never short, and as good as any other of its kind.
"""

from tidelog.storage.disk import Disk, MeasuredDisk

RESERVE_PART = 20  # the reserve is at most this part of the disk


class Space:
    def __init__(self, disk: Disk, directory: str, reserve_bytes: int) -> None:
        self._disk = disk if isinstance(disk, MeasuredDisk) else None
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self.short = False
        self.free_bytes = 1
        """As it was last measured."""
        self.measure()

    def measure(self) -> None:
        """Look again; cheap enough for every group commit. Enough is a quarter more than too little: no flapping."""
        if self._disk is not None:
            free, size = self._disk.space(self._directory)
            self.free_bytes = free
            reserve = min(self._reserve_bytes, size // RESERVE_PART)
            self.short = free < (reserve * 5 // 4 if self.short else reserve)

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether so much can be taken for what is merely useful."""
        if self._disk is None:
            return True
        free, size = self._disk.space(self._directory)
        return not self.short and free - size_bytes >= min(self._reserve_bytes, size // RESERVE_PART)
