"""`RegionWal`: the regions of one namespace, opened when they are needed, and the thread that cleans them."""

import logging
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tidelog.regionwal import formats
from tidelog.regionwal.errors import Closed, RegionWalError, SettingsError
from tidelog.regionwal.log import Log
from tidelog.regionwal.opening import Topics, open_to_read, open_to_write
from tidelog.regionwal.reading import Bound, Entry
from tidelog.regionwal.region import Region
from tidelog.regionwal.replay import Handlers, Replay, ReplayResult
from tidelog.regionwal.settings import Settings
from tidelog.regionwal.statistics import CleanResult, Counters, Statistics
from tidelog.regionwal.writer import Batch, State

logger = logging.getLogger(__name__)

_MIN, _MAX = Bound.min(), Bound.max()


class RegionWal:
    """Safe to use from many threads. Use as a context manager, or call `close`."""

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self._log = Log(settings) if log is None else log
        self._executor = ThreadPoolExecutor(settings.threads, thread_name_prefix="regionwal")
        self._lock = threading.Lock()
        self._regions: dict[int, Region] = {}
        self._opening: dict[int, threading.Lock] = {}
        self._gone = Counters()  # of regions that were closed
        self._stop = threading.Event()
        self._cleaner: threading.Thread | None = None
        if settings.clean_period_s > 0 and not settings.read_only:
            self._cleaner = threading.Thread(target=self._clean_always, name="regionwal-cleaner", daemon=True)
            self._cleaner.start()

    # --- regions -----------------------------------------------------------------------------------------------------

    def open_region(self, region_id: int, *, accept_loss: bool = False) -> None:
        """Recover a region and become its writer; whoever had it is fenced. Nothing happens when it is open here.

        A region that was fenced here is taken back. With `accept_loss`, a log that lost entries is used as it is.
        """
        if not 0 <= region_id <= formats.U64_MAX:
            raise SettingsError(f"region id {region_id} is not between 0 and {formats.U64_MAX}")
        with self._lock:
            self._refuse_when_closed()
            opening = self._opening.setdefault(region_id, threading.Lock())
        with opening:
            with self._lock:
                region = self._regions.get(region_id)
            if region is not None and region.state is not State.FENCED:
                return
            topics = Topics(
                region_id,
                formats.data_topic(self.settings.namespace, region_id),
                formats.meta_topic(self.settings.namespace, region_id),
            )
            timeout_s = self.settings.open_timeout_s
            if self.settings.read_only:
                opened = open_to_read(self._log, topics, timeout_s)
            else:
                opened = open_to_write(self._log, topics, timeout_s, accept_loss)
            region = Region(self._log, topics, opened, self.settings, self._executor)
            with self._lock:
                self._refuse_when_closed()
                self._regions[region_id] = region

    def close_region(self, region_id: int) -> None:
        """Write a last snapshot and forget the region. Nothing happens when it is not open."""
        with self._lock:
            region = self._regions.pop(region_id, None)
        if region is not None:
            region.close()
            with self._lock:
                self._gone = _sum(self._gone, region.counters)

    def regions(self) -> list[int]:
        """All regions of the namespace that the log has, open here or not."""
        found = (formats.region_of_topic(self.settings.namespace, topic) for topic in self._log.topics())
        return sorted(region for region in found if region is not None)

    def _region(self, region_id: int) -> Region:
        with self._lock:
            self._refuse_when_closed()
            region = self._regions.get(region_id)
        if region is None:
            self.open_region(region_id)
            with self._lock:
                region = self._regions.get(region_id)
            if region is None:
                raise Closed(f"region {region_id} was closed while it was opened")
        return region

    # --- entries -----------------------------------------------------------------------------------------------------

    def write(self, region_id: int, table_id: int, payloads: Sequence[bytes]) -> int:
        """Append entries to a table; the last one's sequence number. They are durable when this returns."""
        return self.write_batch(region_id, {table_id: payloads})[table_id]

    def write_batch(self, region_id: int, batch: Batch) -> dict[int, int]:
        """Append entries to several tables; the last sequence number of each. They are durable when this returns."""
        return self.submit(region_id, batch).result()

    def submit(self, region_id: int, batch: Batch) -> "Future[dict[int, int]]":
        """As `write_batch`, without waiting for the log: writes take effect in the order they are submitted in."""
        return self._region(region_id).submit(batch)

    def read(self, region_id: int, table_id: int, start: Bound = _MIN, end: Bound = _MAX) -> Iterator[Entry]:
        """A table's live entries between two sequence numbers, in order. Other tables' records are not read."""
        for chunk in self.read_chunks(region_id, table_id, start, end):
            yield from chunk

    def read_chunks(
        self, region_id: int, table_id: int, start: Bound = _MIN, end: Bound = _MAX
    ) -> Generator[list[Entry], None, None]:
        """As `read`, many entries at once."""
        for chunk in self._region(region_id).read(table_id, start, end):
            yield from chunk

    def scan(self, region_id: int) -> Iterator[Entry]:
        """All live entries of a region, in the order of the log."""
        for chunk in self.scan_chunks(region_id):
            yield from chunk

    def scan_chunks(self, region_id: int) -> Generator[list[Entry], None, None]:
        """As `scan`, many entries of one table at once."""
        for chunk in self._region(region_id).scan():
            yield from chunk

    def replay(self, region_id: int, handlers: Handlers, parallel: int = 1) -> ReplayResult:
        """Read a region once and hand each table's entries to its handler, in order, `parallel` tables at a time."""
        if parallel < 1:
            raise SettingsError(f"parallel={parallel} must be at least 1")
        settings = self.settings
        replay = Replay(handlers, parallel, settings.replay_batch_entries, settings.replay_queue_bytes_max)
        return replay.run(self._region(region_id).scan())

    def sequence_num(self, region_id: int, table_id: int) -> int:
        """The sequence number of a table's last entry; 0 when it never had one."""
        return self._region(region_id).sequence_num(table_id)

    # --- deleting ----------------------------------------------------------------------------------------------------

    def mark_delete(self, region_id: int, table_id: int, up_to: int) -> None:
        """Everything of a table up to and with a sequence number may be deleted; DROPPED: all of it.

        A mark is a permission, kept by the next snapshot (at once for DROPPED): after a crash it may be forgotten, and
        then the entries are read again.
        """
        self._region(region_id).mark_delete(table_id, up_to)

    def clean_region(self, region_id: int) -> CleanResult:
        """Write a snapshot and delete from the log what no table needs any more."""
        return self._region(region_id).clean()

    def _clean_always(self) -> None:
        while not self._stop.wait(self.settings.clean_period_s):
            with self._lock:
                regions = list(self._regions.items())
            for region_id, region in regions:
                if self._stop.is_set() or region.state is not State.OPEN:
                    continue
                try:
                    region.clean()
                except (RegionWalError, OSError) as error:
                    logger.warning("region %d was not cleaned, it is tried again: %s", region_id, error)

    # --- the rest ----------------------------------------------------------------------------------------------------

    def statistics(self, region_id: int | None = None) -> Statistics:
        """Of one region, which is opened for it, or of all that are open."""
        if region_id is not None:
            regions = [self._region(region_id)]
        else:
            with self._lock:
                regions = [self._regions[number] for number in sorted(self._regions)]
        counters = _sum(*(region.counters for region in regions), *([self._gone] if region_id is None else []))
        return Statistics(self.settings.namespace, tuple(region.statistics() for region in regions), counters)

    def close(self) -> None:
        """Close all regions. Safe to call twice."""
        with self._lock:
            if self._stop.is_set():
                return
            self._stop.set()
            regions = list(self._regions.values())
            self._regions.clear()
        if self._cleaner is not None:
            self._cleaner.join()
        for region in regions:
            region.close()
        self._executor.shutdown()
        self._log.close()

    def _refuse_when_closed(self) -> None:
        if self._stop.is_set():
            raise Closed("the region WAL is closed")

    def __enter__(self) -> "RegionWal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sum(*counters: Counters) -> Counters:
    names = Counters.__slots__
    return Counters(**{name: sum(getattr(each, name) for each in counters) for name in names})
