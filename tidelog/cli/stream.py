"""`tidelog stream`: make, show, change and remove streams, and cut off their beginning."""

# pyright: reportPrivateImportUsage=false
# (confluent_kafka.admin documents these names as its API, but does not mark them as exported)

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.cli import CommandError
from tidelog.cli.client import ANSWER_S_MAX, Bounds, Cluster, add_bootstrap, number_from, pair, plain, stream_name
from tidelog.cli.output import show, show_json, table

if TYPE_CHECKING:
    from confluent_kafka import TopicPartitionInfo
    from confluent_kafka.admin import ConfigResource, TopicDescription

SERVERS_CHOICE = -1  # partitions, replicas: what the cluster has as its default
LATEST = -1  # of an offset to trim before: the end, whatever it is when the request arrives


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("stream", help="create, list, describe, alter, delete and trim streams")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(act: Callable[[argparse.Namespace, Cluster], None], text: str) -> argparse.ArgumentParser:
        parser = actions.add_parser(act.__name__.strip("_"), help=text)
        parser.set_defaults(act=act)
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_bootstrap(parser)
        return parser

    create = action(_create, "make a stream")
    create.add_argument("name", type=stream_name)
    create.add_argument("--partitions", metavar="N", type=number_from(1), default=SERVERS_CHOICE)
    create.add_argument("--replicas", metavar="N", type=number_from(1), default=SERVERS_CHOICE)
    create.add_argument("--config", metavar="K=V", type=pair, action="append", default=[], help="may be repeated")

    listing = action(_list, "show which streams there are")
    listing.add_argument("--internal", action="store_true", help="the cluster's own as well")

    describe = action(_describe, "show a stream's partitions and settings")
    describe.add_argument("name", type=stream_name)

    alter = action(_alter, "add partitions, change settings, move replicas")
    alter.add_argument("name", type=stream_name)
    alter.add_argument("--partitions", metavar="N", type=number_from(1), help="how many it is to have; never fewer")
    alter.add_argument("--config", metavar="K=V", type=pair, action="append", default=[], help="may be repeated")
    alter.add_argument(
        "--nodes", metavar="N,N,…", type=_nodes, help="the nodes that are to hold it, its preferred leader first"
    )
    alter.add_argument(
        "--partition", metavar="P", type=number_from(0), help="with --nodes: only this one (default: all)"
    )
    alter.add_argument(
        "--force",
        action="store_true",
        help="with --nodes: skip the check that a majority stays healthy; the stream may become unwritable",
    )
    alter.add_argument(
        "--unset", metavar="K", type=plain, action="append", default=[], help="back to the cluster's default"
    )

    delete = action(_delete, "remove streams and all their records")
    delete.add_argument("names", metavar="name", type=stream_name, nargs="+")

    trim = action(_trim, "remove a stream's oldest records")
    trim.add_argument("name", type=stream_name)
    trim.add_argument("--before", metavar="OFFSET|latest", type=_before, required=True, help="the first offset to keep")
    trim.add_argument("--partition", metavar="P", type=number_from(0), help="only this one (default: all)")


def _nodes(text: str) -> list[int]:
    nodes = [number_from(1)(part.strip()) for part in text.split(",")]
    if len(set(nodes)) != len(nodes):
        raise argparse.ArgumentTypeError(f"{text!r} names a node twice")
    return nodes


def run(options: argparse.Namespace) -> int:
    options.act(options, Cluster(options.bootstrap))
    return 0


def _create(options: argparse.Namespace, cluster: Cluster) -> None:
    from confluent_kafka.admin import NewTopic

    new = NewTopic(options.name, options.partitions, options.replicas, config=dict(options.config))
    futures = cluster.admin.create_topics([new], request_timeout=ANSWER_S_MAX, operation_timeout=ANSWER_S_MAX)
    cluster.answer(futures[options.name], options.name)
    if options.json:
        show_json({"created": options.name})
    else:
        show(f"created {options.name}")


def _list(options: argparse.Namespace, cluster: Cluster) -> None:
    chosen = [stream for stream in cluster.describe_all() if options.internal or not stream.is_internal]
    rows = [(stream.name, len(stream.partitions), _replicas(stream)) for stream in chosen]
    if options.json:
        keys = ("stream", "partitions", "replicas")
        show_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        show(table(("STREAM", "PARTITIONS", "REPLICAS"), rows))


def _replicas(stream: "TopicDescription") -> int:
    return max((len(partition.replicas) for partition in stream.partitions), default=0)


def _describe(options: argparse.Namespace, cluster: Cluster) -> None:
    stream = cluster.describe(options.name)
    configs = _configs_set(options.name, cluster)
    # A partition without a leader cannot be asked for its bounds; the others are shown all the same.
    led = [partition.id for partition in stream.partitions if partition.leader is not None]
    bounds: dict[int, Bounds] = cluster.bounds(options.name, led)
    replica_sets = _replica_sets(options)
    if not all(partition.id in replica_sets for partition in stream.partitions):
        replica_sets = {partition.id: _kafka_replicas(partition) for partition in stream.partitions}
    partitions = [
        {
            "partition": partition.id,
            "leader": partition.leader.id if partition.leader is not None else None,
            **replica_sets[partition.id],
            "earliest": bounds[partition.id].earliest if partition.id in bounds else None,
            "latest": bounds[partition.id].latest if partition.id in bounds else None,
        }
        for partition in sorted(stream.partitions, key=lambda partition: partition.id)
    ]
    if options.json:
        show_json({"stream": stream.name, "configs": configs, "partitions": partitions})
        return
    show(f"stream   {stream.name}")
    show("configs  " + (" ".join(f"{name}={value}" for name, value in configs.items()) or "all default"))
    header = [name.replace("_", " ").upper() for name in partitions[0]]
    show(table(header, [[_cell(value) for value in partition.values()] for partition in partitions]))


def _replica_sets(options: argparse.Namespace) -> dict[int, dict[str, object]]:
    """What only Tidelog tells; of Kafka nothing."""
    from tidelog.cli.admin import Admin

    admin = Admin(options.bootstrap)
    try:
        rows = admin.partitions(options.name)
    except CommandError:
        return {}
    finally:
        admin.close()
    return {
        row.partition: {
            "term": row.term,
            "replicas": list(row.replicas),
            "voters": list(row.voters),
            "learners": list(row.learners),
        }
        for row in rows
    }


def _kafka_replicas(partition: "TopicPartitionInfo") -> dict[str, object]:
    return {
        "replicas": [node.id for node in partition.replicas],
        "in_sync": [node.id for node in partition.isr],
    }


def _cell(value: object) -> object:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return "none" if value is None else value


def _configs_set(name: str, cluster: Cluster) -> dict[str, str | None]:
    """The settings that were made for this stream."""
    from confluent_kafka.admin import ConfigSource

    resource = _resource(name)
    entries = cluster.answer(
        cluster.admin.describe_configs([resource], request_timeout=ANSWER_S_MAX)[resource], name
    ).values()
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {entry.name: entry.value for entry in sorted(entries, key=lambda entry: entry.name) if entry.source == own}


def _resource(name: str, changes: dict[str, str | None] | None = None) -> "ConfigResource":
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entries = [
        ConfigEntry(
            key, value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        )
        for key, value in (changes or {}).items()
    ]
    return ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries or None)


def _alter(options: argparse.Namespace, cluster: Cluster) -> None:
    from confluent_kafka.admin import NewPartitions

    name = options.name
    changes: dict[str, str | None] = {**dict(options.config), **dict.fromkeys(options.unset)}
    if not changes and options.partitions is None and options.nodes is None:
        raise CommandError("nothing to change: give --partitions, --config, --unset or --nodes")
    # Two requests, so both are tried out before either is made: a refusal leaves the stream as it was.
    for trial in (True, False):
        if changes:
            resource = _resource(name, changes)
            futures = cluster.admin.incremental_alter_configs(
                [resource], validate_only=trial, request_timeout=ANSWER_S_MAX
            )
            cluster.answer(futures[resource], name)
        if options.partitions is not None:
            futures = cluster.admin.create_partitions(
                [NewPartitions(name, options.partitions)], validate_only=trial, request_timeout=ANSWER_S_MAX
            )
            cluster.answer(futures[name], name)
    if options.nodes is not None:
        _move(options)
    if options.json:
        show_json({"altered": name})
    else:
        show(f"altered {name}")


def _move(options: argparse.Namespace) -> None:
    from tidelog.cli.admin import Admin

    admin = Admin(options.bootstrap)
    try:
        rows = [row for row in admin.partitions(options.name) if options.partition in (None, row.partition)]
        if not rows:
            raise CommandError(f"stream {options.name} has no partition {options.partition}")
        for row in rows:
            admin.change(
                "reassign", topic=row.topic, partition=row.partition, replicas=options.nodes, force=options.force
            )
    finally:
        admin.close()


def _delete(options: argparse.Namespace, cluster: Cluster) -> None:
    names = list(dict.fromkeys(options.names))
    futures = cluster.admin.delete_topics(names, request_timeout=ANSWER_S_MAX, operation_timeout=ANSWER_S_MAX)
    deleted: list[str] = []
    refused: list[str] = []
    for name in names:
        try:
            cluster.answer(futures[name], name)
            deleted.append(name)
        except CommandError as error:
            refused.append(str(error))
    if options.json:
        show_json({"deleted": deleted})
    else:
        for name in deleted:
            show(f"deleted {name}")
    if refused:
        raise CommandError("; ".join(refused))


def _before(text: str) -> int:
    return LATEST if text == "latest" else number_from(0)(text)


def _trim(options: argparse.Namespace, cluster: Cluster) -> None:
    from confluent_kafka import TopicPartition

    name = options.name
    bounds = cluster.bounds(name, cluster.partitions(name, options.partition))
    # All partitions are checked first: a refusal of one must not come after another has been trimmed.
    for partition, held in bounds.items():
        if options.before > held.latest:
            raise CommandError(
                f"partition {partition} of {name} ends at {held.latest}: give an offset up to that, or latest"
            )
    places = [TopicPartition(name, partition, options.before) for partition in bounds]
    futures = cluster.admin.delete_records(places, request_timeout=ANSWER_S_MAX, operation_timeout=ANSWER_S_MAX)
    earliest = {place.partition: cluster.answer(future, name).low_watermark for place, future in futures.items()}
    if options.json:
        rows = [{"partition": partition, "earliest": offset} for partition, offset in sorted(earliest.items())]
        show_json({"trimmed": name, "partitions": rows})
    else:
        for partition, offset in sorted(earliest.items()):
            show(f"partition {partition} of {name} begins at {offset}")
