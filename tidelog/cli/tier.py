"""`tidelog tier`: streams whose history is in an object store.

`status` shows how streams stand between disk and store, `scrub` compares the store with what the streams know of it,
`recover` makes topics again of which only the store is left, and `attach` shows another cluster's topic, to be read.
What is asked about a stream is asked of its leader.
"""

import argparse
import sys
import time
from collections.abc import Collection
from typing import Any

from tidelog.cli import CommandError
from tidelog.cli.admin import RETRY_S, Admin, PartitionRow, Refused
from tidelog.cli.client import add_bootstrap, stream_name
from tidelog.cli.link import Unreachable
from tidelog.cli.output import StatusLine, show, show_json, table

LEADER_S_MAX = 10.0
WORK_S_MAX = 300.0  # for one answer that reads or lists the store


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("tier", help="streams whose history is in an object store")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    status = actions.add_parser("status", help="how streams stand between disk and store")
    status.add_argument("streams", metavar="STREAM", type=stream_name, nargs="*", help="default: all that are tiered")
    scrub = actions.add_parser(
        "scrub",
        help="compare the store with what the streams know of it",
        description="Lists the store and reports objects that nobody knows of and such that are missing, and folders "
        "that are no topic's of this cluster. Exit status 1 when history or a manifest is missing or damaged.",
    )
    scrub.add_argument("streams", metavar="STREAM", type=stream_name, nargs="*", help="default: all in the store")
    scrub.add_argument(
        "--remove", action="store_true", help="remove objects that nobody knows of, write manifests that are wrong anew"
    )
    scrub.add_argument(
        "--remove-folder", metavar="FOLDER", default="", help="remove a folder that is no topic's of this cluster"
    )
    scrub.add_argument("--read", action="store_true", help="read everything and compare its checksums")
    recover = actions.add_parser(
        "recover",
        help="make topics again of which only the store is left",
        description="For a new cluster with the old one's store. Topics come back with their ids, settings and all "
        "that was in the store; what was only on the lost disks is lost. Exit status 1 when one was not recovered.",
    )
    recover.add_argument(
        "stream", metavar="STREAM", nargs="?", help="or its folder in the store (NAME-ID); default: all in the store"
    )
    attach = actions.add_parser(
        "attach",
        help="show another cluster's topic, straight from the store",
        description="Makes a topic that can only be read: what the other cluster has copied to the store, as it goes "
        "on copying. Both clusters' nodes have the same remote.log.store.url. Deleting it leaves the store as it is.",
    )
    attach.add_argument("source", metavar="SOURCE", help="the topic's name there, or its folder in the store (NAME-ID)")
    attach.add_argument("--as", dest="name", metavar="STREAM", type=stream_name, default="", help="its name here")
    for action in (status, scrub, recover, attach):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_bootstrap(action)


def run(options: argparse.Namespace) -> int:
    admin = Admin(options.bootstrap)
    try:
        match options.action:
            case "status":
                return _status(admin, options)
            case "scrub":
                return _scrub(admin, options)
            case "recover":
                return _recover(admin, options)
            case _:
                return _attach(admin, options)
    finally:
        admin.close()


def _at_leader(admin: Admin, row: PartitionRow, method: str, timeout_s: float, **content: object) -> Any:
    """The answer of the partition's leader, whoever that is by then."""
    give_up = time.monotonic() + LEADER_S_MAX
    while True:
        try:
            if row.leader < 0:
                raise Refused(0, f"{row.name} has no leader now")
            return admin.call_node(
                row.leader, method, timeout_s, topic=row.topic, partition=row.partition, **content
            )  # fmt: skip
        except (Refused, Unreachable) as error:
            moving = isinstance(error, Unreachable) or error.for_now or error.code == 0
            if not moving or time.monotonic() >= give_up:
                raise CommandError(f"{row.name}: {error}") from None
        time.sleep(RETRY_S)
        row = next((each for each in admin.partitions(row.topic) if each.partition == row.partition), row)


def _tiered(
    admin: Admin, names: list[str], stored: Collection[str] = ()
) -> list[tuple[PartitionRow, dict[str, Any]]]:  # fmt: skip
    """The partitions asked for, or all that are tiered, or whose topic has a folder in the store; with their status."""
    rows = [row for name in names for row in admin.partitions(name)] if names else admin.partitions()
    found: list[tuple[PartitionRow, dict[str, Any]]] = []
    for row in rows:
        status = _at_leader(admin, row, "tier-status", LEADER_S_MAX)
        if names or row.topic in stored or status["enabled"] or status["attached"] or status["RemoteLogMetadataCount"]:
            found.append((row, status))
    return found


def _status(admin: Admin, options: argparse.Namespace) -> int:
    found = _tiered(admin, options.streams)
    if options.json:
        show_json([{"stream": row.topic, "partition": row.partition, **status} for row, status in found])
        return 0
    if not found:
        show("no stream is tiered")
        return 0
    header = ("STREAM", "BEGINS", "ON DISK FROM", "COPIED UNTIL", "ENDS", "IN STORE", "ON DISK", "TO COPY", "OVERDUE")
    rows = [
        (
            row.name, s["start_offset"], s["local_start_offset"], s["copied_until"], s["high_watermark"],
            s["RemoteLogSizeBytes"], s["local_bytes"], s["RemoteCopyLagBytes"], s["overdue_bytes"],
        )
        for row, s in found
    ]  # fmt: skip
    show(table(header, rows))
    show("")
    show(table(("NODE", "TOPIC", "COPIED", "FETCHED", "DELETED", "ERRORS", "CACHE HITS", "MISSES"), _counted(found)))
    return 0


def _counted(found: list[tuple[PartitionRow, dict[str, Any]]]) -> list[tuple[object, ...]]:
    """Bytes and errors since the nodes were started: a row a topic and node, and one for each node as a whole."""
    rows: dict[tuple[int, str], tuple[object, ...]] = {}
    for row, status in found:
        node = status["node"]
        caches = [node["chunk_cache"], node["index_cache"]]
        hits = sum(cache["memory_hits"] + cache["disk_hits"] for cache in caches)
        rows[node["node"], row.topic] = (node["node"], row.topic, *_bytes_and_errors(status["topic"]), "", "")
        misses = sum(cache["loads"] for cache in caches)
        rows[node["node"], "~"] = (node["node"], "all", *_bytes_and_errors(node), hits, misses)  # behind all names
    return [rows[key] for key in sorted(rows)]


def _bytes_and_errors(counts: dict[str, int]) -> tuple[int, ...]:
    sizes = (counts[f"Remote{kind}Bytes"] for kind in ("Copy", "Fetch", "Delete"))
    return (*sizes, sum(counts[f"Remote{kind}Errors"] for kind in ("Copy", "Fetch", "Delete")))


def _scrub(admin: Admin, options: argparse.Namespace) -> int:
    line = StatusLine(sys.stderr)
    results: list[dict[str, Any]] = []
    wrong: list[str] = []
    store = admin.call("tier-folders", WORK_S_MAX, remove=options.remove_folder)
    strays = [] if options.streams else store["strays"]
    for row, _ in _tiered(admin, options.streams, store["topics"]):
        found = _at_leader(admin, row, "tier-scrub", WORK_S_MAX, remove=options.remove)
        wrong += [f"{name} is missing" for name in found["missing"]]
        if found["manifest"]:
            wrong.append(f"the manifest of {row.name}: {found['manifest']}")
        checked = 0
        for base_offset in found["segments"] if options.read else ():
            answer = _at_leader(admin, row, "tier-check", WORK_S_MAX, base_offset=base_offset)
            checked += answer["bytes"]
            line.show(f"{row.name}: {checked >> 20} MiB checked")
            if answer["wrong"]:
                wrong.append(f"{row.name}, segment {base_offset}: {answer['wrong']}")
        results.append({"stream": row.topic, "partition": row.partition, "checked_bytes": checked, **found})
    line.clear()
    if options.json:
        show_json({"streams": results, "problems": wrong, "strays": strays})
        return 1 if wrong else 0
    for result in results:
        for name in result["orphans"]:
            show(f"{'removed' if options.remove else 'nobody knows of'} {name}")
        for name in result["foreign"]:
            show(f"{name} is not of ours, and is left alone")
    for stray in strays:
        show(f"{stray['folder']} is {stray['whose']}: {stray['objects']} objects, {stray['bytes']} bytes")
    for problem in wrong:
        show(problem)
    objects, orphans = (sum(result[key] for result in results) for key in ("objects", "orphan_bytes"))
    show(f"streams: {len(results)}, objects: {objects}, bytes that nobody knows of: {orphans}")
    show(f"{len(wrong)} problems" if wrong else "all in order")
    return 1 if wrong else 0


def _recover(admin: Admin, options: argparse.Namespace) -> int:
    answer = admin.call("tier-recover", WORK_S_MAX, topic=options.stream or "")
    made, problems = answer["topics"], answer["problems"]
    line = StatusLine(sys.stderr)
    rows = [row for name in made for row in admin.partitions(name)]
    give_up = time.monotonic() + WORK_S_MAX
    for row in rows:
        while _at_leader(admin, row, "tier-status", LEADER_S_MAX)["awaits_store"]:
            line.show(f"{row.name} is taking up what is in the store")
            if time.monotonic() >= give_up:
                raise CommandError(f"{row.name} is not recovered yet: see `tidelog tier status` and the node's log")
            time.sleep(RETRY_S)
    line.clear()
    if options.json:
        show_json(answer)
        return 1 if problems else 0
    for problem in problems:
        show(f"not recovered: {problem}")
    if made or not problems:
        show(f"recovered: {', '.join(made)}" if made else "nothing is in the store that is not in the cluster")
    return 1 if problems else 0


def _attach(admin: Admin, options: argparse.Namespace) -> int:
    made = admin.call("tier-attach", WORK_S_MAX, source=options.source, topic=options.name)
    give_up = time.monotonic() + LEADER_S_MAX
    for row in admin.partitions(made["topic"]):
        # A partition of which nothing was ever copied has nothing to show; so this wait may come to nothing.
        while not _at_leader(admin, row, "tier-status", LEADER_S_MAX)["copied_until"] and time.monotonic() < give_up:
            time.sleep(RETRY_S)
    if options.json:
        show_json(made)
    else:
        show(f"{made['topic']} shows {made['folder']}: {made['partitions']} partitions")
    return 0
