"""`tidelog cluster`: which nodes there are and how they are, and what is done about it: leaders and replicas moved,
nodes taken out and in.

`status` ends with status 1 when the cluster is not healthy, so that a script can wait for it.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidelog.cli import CommandError
from tidelog.cli.client import add_bootstrap, number_from, seconds, stream_name
from tidelog.cli.output import StatusLine, show, show_json, table

if TYPE_CHECKING:
    from tidelog.cli.admin import Admin, ClusterView, NodeRow, PartitionRow

STATUS_S_MAX = 4.0
DRAIN_S_MAX = 3600.0
LOOK_S = 0.5
CONFIG_SERVERS_MIN = 3  # with fewer, none may fail
NAMED_MAX = 10  # streams that a line of text names; JSON names all


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("cluster", help="show the cluster; move leaders; take nodes in and out")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(
        name: str, act: "Callable[[argparse.Namespace, Admin], int]", text: str, more: str = ""
    ) -> argparse.ArgumentParser:
        parser = actions.add_parser(name, help=text, description=more or text)
        parser.set_defaults(act=act)
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_bootstrap(parser)
        return parser

    action(
        "status",
        _status,
        "show how the cluster is; status 1 when it is not healthy",
        "Healthy means: a controller, every node alive, every stream with a leader and with all its replicas voting, "
        "no node being drained. Exit status 0 when healthy, 1 when not (or when nobody answers).",
    )
    action("nodes", _nodes, "show the nodes")

    transfer = action(
        "transfer-leader",
        _transfer,
        "have another replica lead a stream",
        "For now: the controller moves leaders home again, to the first of a stream's replicas, or to its preferred "
        "data centre (`leader.rack`). To move the home: `tidelog stream alter STREAM --nodes 2,1,3`.",
    )
    transfer.add_argument("place", metavar="STREAM[:PARTITION]", type=_place, help="without a partition: all of them")
    transfer.add_argument("--to", metavar="NODE", type=number_from(1), required=True)

    add = action(
        "add-node",
        _add_node,
        "take a node back that was drained; make it a config server",
        "A node joins by itself when it is started with the cluster's `cluster.nodes`. This takes back a drain, and "
        "with --config gives it a vote in the cluster's own log.",
    )
    add.add_argument("node", metavar="NODE", type=number_from(1))
    add.add_argument("--config", action="store_true", help="make it a config server")
    _add_force(add)

    remove = action(
        "remove-node",
        _remove_node,
        "move everything off a node, then forget it",
        "Moves the node's replicas elsewhere, waits until nothing is left on it, then removes it. May be interrupted: "
        "the cluster goes on, and the same command waits for it again. `add-node` takes it back.",
    )
    remove.add_argument("node", metavar="NODE", type=number_from(1))
    remove.add_argument(
        "--timeout", metavar="S", type=seconds, default=DRAIN_S_MAX, help="wait for so long (default: %(default)g)"
    )
    _add_force(remove)

    action("balance", _balance, "spread leaders and replicas evenly, now")


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force",
        action="store_true",
        help="accept fewer replicas and config servers than there were, and config servers of which most are away. The "
        "risk: streams, or the cluster itself, that cannot be written until nodes come back",
    )


def _place(text: str) -> tuple[str, int | None]:
    name, colon, partition = text.partition(":")
    if colon and not partition.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not STREAM or STREAM:PARTITION")
    return stream_name(name), int(partition) if colon else None


def run(options: argparse.Namespace) -> int:
    from tidelog.cli.admin import Admin

    admin = Admin(options.bootstrap)
    try:
        return options.act(options, admin)
    finally:
        admin.close()


# --- looking ----------------------------------------------------------------------------------------------------------


def leaderless(view: "ClusterView", rows: "Sequence[PartitionRow]") -> "list[PartitionRow]":
    alive = {node.node for node in view.nodes if node.alive}
    return [row for row in rows if row.leader not in alive]


def under_replicated(view: "ClusterView", rows: "Sequence[PartitionRow]") -> "list[PartitionRow]":
    """Those of which a replica that shall vote does not, or is on a dead node."""
    alive = {node.node for node in view.nodes if node.alive}
    return [row for row in rows if not set(row.replicas) <= (set(row.voters) & alive) or row.absent]


def problems(view: "ClusterView", rows: "Sequence[PartitionRow]") -> list[str]:
    """Why the cluster is not healthy, a sentence each; none when it is."""
    found: list[str] = []
    if not view.founded:
        known = {node.node for node in view.nodes}
        missing = ", ".join(str(node) for node in view.config_nodes if node not in known)
        found.append("the cluster is not founded yet" + (f": node {missing} has not registered" if missing else ""))
    if view.node(view.controller) is None:
        found.append("there is no controller: fewer than a majority of the config servers can talk to each other")
    found.extend(f"node {node.node} does not answer" for node in view.nodes if not node.alive)
    found.extend(f"node {node.node} is being drained" for node in view.nodes if node.draining)
    for count, what in (
        (leaderless(view, rows), "without a leader: not written and not read until a majority of its nodes is back"),
        (under_replicated(view, rows), "with fewer voting replicas than it shall have"),
    ):
        if count:
            found.append(f"{len(count)} of {len(rows)} partitions {what}: {_names(count)}")
    return found


def _names(rows: "Sequence[PartitionRow]") -> str:
    names = [row.name for row in rows[:NAMED_MAX]]
    return ", ".join(names) + (f" and {len(rows) - NAMED_MAX} more" if len(rows) > NAMED_MAX else "")


def _status(options: argparse.Namespace, admin: "Admin") -> int:
    view, rows = admin.cluster(STATUS_S_MAX), admin.partitions()
    found = problems(view, rows)
    if options.json:
        show_json(
            {
                "healthy": not found,
                "problems": found,
                "cluster_id": view.cluster_id,
                "controller": view.controller,
                "config_nodes": view.config_nodes,
                "nodes": [_node_json(node) for node in view.nodes],
                "partitions": len(rows),
                "leaderless": [row.name for row in leaderless(view, rows)],
                "under_replicated": [row.name for row in under_replicated(view, rows)],
            }
        )
        return 1 if found else 0
    show(f"cluster         {view.cluster_id}")
    show(f"controller      node {view.controller}" if view.controller > 0 else "controller      none")
    show(f"config servers  {', '.join(map(str, view.config_nodes))}")
    show(f"partitions      {len(rows)}")
    show(_node_table(view.nodes))
    show("healthy" if not found else "not healthy:\n" + "\n".join(f"  {problem}" for problem in found))
    return 1 if found else 0


def _nodes(options: argparse.Namespace, admin: "Admin") -> int:
    nodes = admin.cluster().nodes
    if options.json:
        show_json([_node_json(node) for node in nodes])
    else:
        show(_node_table(nodes))
    return 0


def _node_json(node: "NodeRow") -> dict[str, object]:
    return {
        "node": node.node,
        "address": f"{node.host}:{node.port}",
        "rack": node.rack,
        "state": _state(node),
        "roles": node.roles,
        "config": node.config,
        "replicas": node.replicas,
        "leaders": node.leaders,
    }


def _state(node: "NodeRow") -> str:
    return ("draining" if node.draining else "alive") if node.alive else "dead"


def _node_table(nodes: "Sequence[NodeRow]") -> str:
    header = ("NODE", "ADDRESS", "RACK", "STATE", "ROLES", "CONFIG", "REPLICAS", "LEADERS")
    return table(
        header,
        [
            (
                node.node,
                f"{node.host}:{node.port}",
                node.rack or "-",
                _state(node),
                ",".join(node.roles),
                node.config,
                node.replicas,
                node.leaders,
            )
            for node in nodes
        ],
    )


# --- changing ---------------------------------------------------------------------------------------------------------


def _transfer(options: argparse.Namespace, admin: "Admin") -> int:
    from tidelog.cli.admin import Refused
    from tidelog.wire.errors import ErrorCode

    topic, only = options.place
    rows = [row for row in admin.partitions(topic) if only is None or row.partition == only]
    if not rows:
        raise CommandError(
            f"there is no stream {topic}: see `tidelog stream list`"
            if only is None
            else f"stream {topic} has no partition {only}"
        )
    wrong = [row for row in rows if options.to not in row.replicas]
    if wrong:
        raise CommandError(
            f"node {options.to} holds no replica of {_names(wrong)}: the replicas are on "
            f"{', '.join(map(str, wrong[0].replicas))}"
        )
    moved = [row for row in rows if row.leader != options.to]
    for row in moved:
        try:
            admin.change("transfer-leader", topic=topic, partition=row.partition, target=options.to)
        except Refused as error:
            if error.code != ErrorCode.ELECTION_NOT_NEEDED:  # it was elected meanwhile
                raise
    if options.json:
        show_json({"stream": topic, "leader": options.to, "moved": [row.partition for row in moved]})
    else:
        for row in rows:
            show(f"{row.name} is led by node {options.to}" + ("" if row in moved else " already"))
    return 0


def _balance(options: argparse.Namespace, admin: "Admin") -> int:
    done = admin.change("balance")
    if options.json:
        show_json(done)
    else:
        show(f"{done['transfers']} leaders are moved, {done['moves']} replicas")
    return 0


def _known(view: "ClusterView", number: int) -> "NodeRow":
    node = view.node(number)
    if node is None:
        raise CommandError(f"there is no node {number}: see `tidelog cluster nodes`")
    return node


def _add_node(options: argparse.Namespace, admin: "Admin") -> int:
    view = admin.cluster()
    node = _known(view, options.node)
    if node.draining:
        admin.change("drain-node", node=node.node, draining=False, force=options.force)
    if options.config and node.node not in view.config_nodes:
        admin.change("config-nodes", nodes=[*view.config_nodes, node.node], force=options.force)
    servers = admin.cluster().config_nodes
    if options.json:
        show_json({"node": node.node, "config_nodes": servers})
    else:
        show(f"node {node.node} is in the cluster; config servers are {', '.join(map(str, servers))}")
    return 0


def _remove_node(options: argparse.Namespace, admin: "Admin") -> int:
    number: int = options.node
    view = admin.cluster()
    node = _known(view, number)
    servers = config_nodes_without(view, number)
    if len(servers) < min(len(view.config_nodes), CONFIG_SERVERS_MIN) and not options.force:
        raise CommandError(
            f"node {number} is a config server and no other node can take its place: {len(servers)} would be left, "
            "of which none may fail. Add a node with role `config` first, or accept that with --force"
        )
    if not node.draining or options.force:  # first: when the rest cannot hold what it holds, nothing was changed
        admin.change("drain-node", node=number, draining=True, force=options.force)
    if number in view.config_nodes:
        admin.change("config-nodes", nodes=servers, force=options.force)
    _wait_until_empty(admin, number, options.timeout)
    admin.change("remove-node", node=number, force=options.force)
    if options.json:
        show_json({"removed": number})
    else:
        show(f"removed node {number}: it stops by itself, and its data folder is not needed any more")
    return 0


def config_nodes_without(view: "ClusterView", number: int) -> list[int]:
    """The config servers when `number` is none: another node in its place where there is one, best of its own rack."""
    if number not in view.config_nodes:
        return list(view.config_nodes)
    leaving = view.node(number)
    left = [node for node in view.config_nodes if node != number]
    taken = {node.rack for node in view.nodes if node.node in left}
    able = [
        node
        for node in view.nodes
        if node.node not in view.config_nodes and node.alive and not node.draining and "config" in node.roles
    ]
    able.sort(key=lambda node: (node.rack in taken, leaving is None or node.rack != leaving.rack, node.node))
    return sorted([*left, *(node.node for node in able[:1])])


def _wait_until_empty(admin: "Admin", number: int, timeout_s: float) -> None:
    line = StatusLine(sys.stderr)
    give_up = time.monotonic() + timeout_s
    try:
        while True:
            rows = admin.partitions()
            left = [row for row in rows if number in (*row.replicas, *row.voters, *row.learners)]
            node = admin.cluster().node(number)
            if not left and (node is None or node.config != "voter"):
                return
            line.show(f"node {number}: {len(left)} replicas are left to move")
            if time.monotonic() > give_up:
                raise CommandError(
                    f"node {number} still has {len(left)} replicas after {timeout_s:g} s ({_names(left)}): the move "
                    "goes on; give the same command to wait again, or `tidelog cluster add-node` to take it back"
                )
            time.sleep(LOOK_S)
    finally:
        line.clear()
