"""Fetching a dump: whole, in order, again after any interruption, and never at the mercy of the other side."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pikiwi.rsync_server import HOST, INFO, Answer, RsyncServer
from tidelog.pikiwi.dump import DumpChanged, DumpInfo, DumpNotReady, FetchLimits, fetch_dump
from tidelog.pikiwi.dump.received import STATE_NAME
from tidelog.pikiwi.errors import DumpError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.progress import SnapshotProgress
from tidelog.pikiwi.protocol import rsync_service_pb2 as pb

QUICK = FetchLimits(request_bytes=1000, poll_s=0.001, retry_s=0.001, reply_s=20.0, connect_s=20.0)
BYTES = random.Random(1).randbytes(20_000)
FILES = {
    "info": INFO,
    "0/CURRENT": b"MANIFEST-000005\n",
    "0/000001.sst": BYTES[:10_000],
    "0/000002.sst": BYTES[:1000],  # exactly one request
    "0/000003.sst": BYTES[:999],
    "1/000001.sst": BYTES[:20_000],
    "1/empty.log": b"",
}


def fetch(
    server: RsyncServer,
    folder: Path,
    *,
    limits: FetchLimits = QUICK,
    on_info: Callable[[DumpInfo], None] = lambda _: None,
    progress: SnapshotProgress | None = None,
) -> DumpInfo:
    async def run() -> DumpInfo:
        async with server.serving():
            return await fetch_dump(
                HOST,
                server.port,
                "db0",
                folder,
                progress=progress or SnapshotProgress(),
                on_info=on_info,
                limits=limits,
            )

    return asyncio.run(run())


def held(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != STATE_NAME)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def server_that(change: Callable[[pb.RsyncRequest, pb.RsyncResponse], Answer]) -> RsyncServer:
    return RsyncServer(dict(FILES), change)


def test_a_dump_arrives_as_it_is(tmp_path: Path) -> None:
    server = RsyncServer(dict(FILES))
    progress = SnapshotProgress()
    info = fetch(server, tmp_path / "dump" / "db0", progress=progress)
    assert info.position == Position(3, 4567)
    assert held(tmp_path / "dump" / "db0") == FILES
    assert server.offences == []
    assert (progress.files_done, progress.files_total) == (len(FILES), len(FILES))
    assert progress.bytes_done == sum(map(len, FILES.values()))
    assert progress.uuid == server.uuid


def test_no_request_is_too_large_or_outside_the_four_readers(tmp_path: Path) -> None:
    server = RsyncServer({"info": INFO, **{f"0/{number:06}.sst": b"x" for number in range(40)}})
    fetch(server, tmp_path, limits=FetchLimits())
    assert {request.reader_index for request in server.requests} == {0, 1, 2, 3}
    assert {request.file_req.count for request in server.requests if request.type == pb.kRsyncFile} == {4 << 20}
    assert server.offences == []


@pytest.mark.parametrize("wrong", [{"readers": 5}, {"readers": 0}, {"request_bytes": (4 << 20) + 1}])
def test_limits_that_would_harm_a_master_cannot_be_set(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        FetchLimits(**wrong)


def test_info_is_handed_over_before_anything_else_is_fetched(tmp_path: Path) -> None:
    server = RsyncServer(dict(FILES))
    asked_before: list[tuple[str, int]] = []
    positions: list[Position] = []

    def on_info(info: DumpInfo) -> None:
        asked_before.extend(server.asked)
        positions.append(info.position)

    fetch(server, tmp_path, on_info=on_info)
    assert {name for name, _ in asked_before} == {"info"}
    assert positions == [Position(3, 4567)]


def test_replies_shorter_than_asked_for_are_put_together(tmp_path: Path) -> None:
    def cut(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        file = response.file_resp
        if request.type == pb.kRsyncFile and len(file.data) > 77:
            file.data = file.data[:77]
            file.count, file.eof = 77, 0
        return response

    server = server_that(cut)
    fetch(server, tmp_path)
    assert held(tmp_path) == FILES
    assert server.offences == []


@pytest.mark.parametrize("answer", ["error", "no dump"])
def test_a_master_that_is_still_saving_is_waited_for(answer: str, tmp_path: Path) -> None:
    looks = 0

    def saving(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        nonlocal looks
        looks += 1
        if looks > 3:
            return response
        response.snapshot_uuid = ""
        del response.meta_resp.filenames[:]
        if answer == "error":
            response.code = pb.kErr
            response.ClearField("meta_resp")
        else:
            response.meta_resp.filenames.append("info")
        return response

    fetch(server_that(saving), tmp_path)
    assert looks > 3
    assert held(tmp_path) == FILES


def test_a_master_that_never_has_a_dump_is_given_up(tmp_path: Path) -> None:
    def never(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        response.code, response.snapshot_uuid = pb.kErr, ""
        return response

    with pytest.raises(DumpNotReady, match="wait_bgsave_timeout"):
        fetch(server_that(never), tmp_path, limits=FetchLimits(ready_s=0.02, poll_s=0.001))


def test_connections_that_break_are_made_again(tmp_path: Path) -> None:
    count = 0

    def break_often(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        nonlocal count
        count += 1
        return None if count % 3 == 0 else response

    server = server_that(break_often)
    fetch(server, tmp_path)
    assert held(tmp_path) == FILES
    assert server.connections > 5


def test_a_connection_that_always_breaks_is_given_up(tmp_path: Path) -> None:
    server = server_that(lambda request, response: None if request.type == pb.kRsyncFile else response)
    with pytest.raises(DumpError, match="closed the connection"):
        fetch(server, tmp_path)


def test_a_port_where_nobody_listens_is_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        server = RsyncServer(dict(FILES))
        async with server.serving():
            pass
        await fetch_dump(
            HOST, server.port, "db0", tmp_path, progress=SnapshotProgress(), on_info=lambda _: None, limits=QUICK
        )

    with pytest.raises(DumpError, match="could not be fetched"):
        asyncio.run(run())


def interrupted_after(server: RsyncServer, folder: Path, requests: int) -> None:
    """Fetches until that many files' requests were answered; the next is never answered and the fetch is cancelled."""

    async def run() -> None:
        stop = asyncio.Event()
        whole = server.change

        def count(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
            if len(server.asked) > requests:
                stop.set()
                return b""
            return whole(request, response)

        server.change = count
        async with server.serving():
            task = asyncio.create_task(
                fetch_dump(
                    HOST, server.port, "db0", folder, progress=SnapshotProgress(), on_info=lambda _: None, limits=QUICK
                )
            )
            await asyncio.wait([task, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        server.change = whole

    asyncio.run(run())


@pytest.mark.parametrize("requests", [0, 1, 2, 5, 9, 14, 21, 30])
def test_an_interrupted_fetch_goes_on_where_it_stopped(requests: int, tmp_path: Path) -> None:
    server = RsyncServer(dict(FILES))
    interrupted_after(server, tmp_path, requests)
    before = len(server.asked)
    progress = SnapshotProgress()
    fetch(server, tmp_path, progress=progress)
    assert held(tmp_path) == FILES
    assert server.offences == [], "nothing is asked for at or behind a file's end"
    assert (progress.bytes_done, progress.files_done) == (sum(map(len, FILES.values())), len(FILES))
    whole = 1 + sum(-(-len(content) // QUICK.request_bytes) or 1 for content in FILES.values())
    small = sum(1 for name in FILES if not name.endswith(".sst"))
    assert len(server.asked) - before <= whole - before + small + 8, "only what is missing is fetched"


def test_a_part_that_is_whole_already_is_not_read_behind_its_end(tmp_path: Path) -> None:
    server = RsyncServer(dict(FILES))
    interrupted_after(server, tmp_path, 1)
    for name, content in FILES.items():
        if name.endswith(".sst"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).with_suffix(".sst.part").write_bytes(content)
    fetch(server, tmp_path)
    assert held(tmp_path) == FILES
    assert server.offences == []


def test_parts_of_another_boot_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = RsyncServer(dict(FILES))
    interrupted_after(server, tmp_path, 12)
    for part in tmp_path.rglob("*.sst.part"):
        part.write_bytes(bytes(part.stat().st_size))  # as a file system may leave what was never synced
    monkeypatch.setattr("tidelog.pikiwi.dump.received._boot", lambda: "another")
    fetch(server, tmp_path)
    assert held(tmp_path) == FILES


def test_small_files_are_fetched_again_since_one_uuid_can_be_two_dumps(tmp_path: Path) -> None:
    server = RsyncServer(dict(FILES))
    interrupted_after(server, tmp_path, 30)
    server.files["0/CURRENT"] = b"MANIFEST-000009\n"
    fetch(server, tmp_path)
    assert held(tmp_path)["0/CURRENT"] == b"MANIFEST-000009\n"


@pytest.mark.parametrize("change", ["uuid", "files"])
def test_another_dump_starts_the_fetch_over(change: str, tmp_path: Path) -> None:
    server = RsyncServer(dict(FILES))
    interrupted_after(server, tmp_path, 20)
    if change == "uuid":
        server.files["info"] = INFO.replace(b"4567", b"9999")
    else:
        del server.files["0/000003.sst"]
    server.files["0/000001.sst"] = BYTES[5000:9000]
    fetch(server, tmp_path)
    assert held(tmp_path) == server.files


def test_a_complete_dump_is_not_fetched_again(tmp_path: Path) -> None:
    server = RsyncServer(dict(FILES))
    fetch(server, tmp_path)
    before = len(server.asked)
    positions: list[Position] = []
    fetch(server, tmp_path, on_info=lambda info: positions.append(info.position))
    assert len(server.asked) == before
    assert positions == [Position(3, 4567)]


@pytest.mark.parametrize("replies", [1, 4, 20])
def test_a_dump_that_is_replaced_while_it_is_fetched_ends_the_fetch(replies: int, tmp_path: Path) -> None:
    def replace(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        if len(server.asked) > replies:
            response.snapshot_uuid = "another"
        return response

    server = server_that(replace)
    infos: list[DumpInfo] = []
    with pytest.raises(DumpChanged, match="replaced"):
        fetch(server, tmp_path, on_info=infos.append)
    assert len(infos) == 1


def test_a_dump_that_is_replaced_before_anybody_knows_its_position_is_begun_again(tmp_path: Path) -> None:
    def replace(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        if len(server.asked) == 1 and request.type == pb.kRsyncFile:
            server.files["info"] = INFO.replace(b"4567", b"9999")
            response.snapshot_uuid = server.uuid
        return response

    server = server_that(replace)
    infos: list[DumpInfo] = []
    fetch(server, tmp_path, on_info=infos.append)
    assert [info.position for info in infos] == [Position(3, 9999)]


def test_a_master_that_changes_its_dump_for_ever_is_given_up(tmp_path: Path) -> None:
    def replace(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        response.snapshot_uuid = str(len(server.requests))
        return response

    server = server_that(replace)
    with pytest.raises(DumpChanged):
        fetch(server, tmp_path, limits=FetchLimits(ready_s=0.05, poll_s=0.001))


def test_a_file_that_vanished_ends_the_fetch(tmp_path: Path) -> None:
    def vanish(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        if request.file_req.filename == "1/000001.sst":
            response.code = pb.kErr
            response.ClearField("file_resp")
        return response

    with pytest.raises(DumpChanged, match=r"no longer has 1/000001\.sst"):
        fetch(server_that(vanish), tmp_path)


def test_a_file_without_an_end_is_bounded(tmp_path: Path) -> None:
    def endless(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        file = response.file_resp
        if request.type == pb.kRsyncFile and request.file_req.filename != "info":
            file.data, file.count, file.eof = b"\xa5" * 1000, 1000, 0
        return response

    server = server_that(endless)
    with pytest.raises(DumpError, match="without an end"):
        fetch(server, tmp_path, limits=FetchLimits(request_bytes=1000, file_bytes=50_000))
    assert len(server.asked) < 300
    with pytest.raises(DumpError, match="without an end"):
        fetch(server, tmp_path / "again", limits=FetchLimits(request_bytes=1000, dump_bytes=50_000))


def test_an_info_without_an_end_is_bounded(tmp_path: Path) -> None:
    def endless(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        if request.type == pb.kRsyncFile:
            response.file_resp.eof = 0
            response.file_resp.data, response.file_resp.count = b"1\n" * 500, 1000
        return response

    with pytest.raises(DumpError, match="info goes on"):
        fetch(server_that(endless), tmp_path)


def test_replies_without_data_and_without_an_end_are_bounded(tmp_path: Path) -> None:
    def nothing(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        if request.type == pb.kRsyncFile:
            response.file_resp.data, response.file_resp.count, response.file_resp.eof = b"", 0, 0
        return response

    with pytest.raises(DumpError, match="without data"):
        fetch(server_that(nothing), tmp_path)


Change = Callable[[pb.RsyncResponse], object]
LIES: dict[str, Change] = {
    "another file": lambda response: setattr(response.file_resp, "filename", "0/other"),
    "another offset": lambda response: setattr(response.file_resp, "offset", 7),
    "another count": lambda response: setattr(response.file_resp, "count", 7_000),
    "another database": lambda response: setattr(response, "db_name", "db7"),
    "another reader": lambda response: setattr(response, "reader_index", 3 - response.reader_index),
    "another type": lambda response: setattr(response, "type", pb.kRsyncMeta),
    "more than asked": lambda response: (
        setattr(response.file_resp, "data", b"x" * 1001),
        setattr(response.file_resp, "count", 1001),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_reply_to_something_else_is_an_error(lie: str, tmp_path: Path) -> None:
    def change(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        if request.type == pb.kRsyncFile:
            LIES[lie](response)
        return response

    with pytest.raises(DumpError):
        fetch(server_that(change), tmp_path)


@pytest.mark.parametrize(
    "raw", [b"\xff\xff\xff\xff", b"\0\0\0\3abc", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0"], ids=repr
)
def test_bytes_that_are_no_message_are_an_error(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="could not be fetched"):
        fetch(server_that(lambda request, response: raw), tmp_path)


def test_a_master_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    limits = FetchLimits(reply_s=0.02, poll_s=0.001, retry_s=0.001, failures=2)
    with pytest.raises(DumpError, match="no answer in time"):
        fetch(server_that(lambda request, response: b""), tmp_path, limits=limits)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../outside",
        "0/../../outside",
        "0/./x",
        "0//x",
        "",
        "0/",
        "a\0b",
        "a\nb",
        "a\\b",
        "x" * 256,
        "/".join("abcdefghi"),
        "fetch.json",
        "0/x.part",
        "info/below",
        "0/CURRENT/below",
    ],
)
def test_names_that_could_leave_or_harm_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    def add(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
        if request.type == pb.kRsyncMeta:
            response.meta_resp.filenames.append(name)
        return response

    with pytest.raises(DumpError, match="the master lists"):
        fetch(server_that(add), tmp_path / "dump")
    assert not (tmp_path / "dump").exists()


def test_too_many_files_or_one_twice_or_no_info_is_refused(tmp_path: Path) -> None:
    def listing(names: list[str]) -> RsyncServer:
        def change(request: pb.RsyncRequest, response: pb.RsyncResponse) -> Answer:
            response.meta_resp.filenames[:] = names
            return response

        return server_that(change)

    with pytest.raises(DumpError, match="lists 11 files"):
        fetch(listing([str(number) for number in range(11)]), tmp_path, limits=FetchLimits(files=10))
    with pytest.raises(DumpError, match="twice"):
        fetch(listing(["info", "a", "a"]), tmp_path)
    with pytest.raises(DumpError, match="without info"):
        fetch(listing(["a"]), tmp_path)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(DumpError, match="has other things in it"):
        fetch(RsyncServer(dict(FILES)), tmp_path)
    assert held(tmp_path) == {"precious": b"data"}


def test_a_full_disk_is_an_error_that_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tidelog.pikiwi.dump.received.os.pwrite", full)
    with pytest.raises(DumpError, match="No space left"):
        fetch(RsyncServer(dict(FILES)), tmp_path)


def test_files_and_folders_are_synced_before_the_dump_counts_as_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        "tidelog.pikiwi.dump.received._sync", lambda path: synced.append(str(path.relative_to(tmp_path.parent)))
    )
    fetch(RsyncServer(dict(FILES)), tmp_path)
    base = tmp_path.name
    complete = len(synced) - 1 - synced[::-1].index(f"{base}/fetch.json.part")
    before = synced[:complete]
    assert {f"{base}/{name}.part" for name in FILES} <= set(before)
    assert {base, f"{base}/0", f"{base}/1"} <= set(before)
    assert base in synced[complete:], "the state's own name"
