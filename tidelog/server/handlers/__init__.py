"""What is done with each request other than Produce and Fetch: a function from the request to its answer."""

from tidelog.server.handlers import (
    admin,
    configs,
    groups,
    metadata,
    offsets,
    producers,
    reassignments,
    segments,
    topics,
)
from tidelog.server.handlers.call import Call, Handler

HANDLERS: dict[int, Handler] = {
    2: offsets.list_offsets,
    3: metadata.metadata,
    8: groups.offset_commit,
    9: groups.offset_fetch,
    10: groups.find_coordinator,
    11: groups.join_group,
    12: groups.heartbeat,
    13: groups.leave_group,
    14: groups.sync_group,
    15: groups.describe_groups,
    16: groups.list_groups,
    18: metadata.api_versions,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: offsets.delete_records,
    22: producers.init_producer_id,
    23: offsets.offset_for_leader_epoch,
    32: configs.describe_configs,
    33: configs.alter_configs,
    35: configs.describe_log_dirs,
    37: topics.create_partitions,
    42: groups.delete_groups,
    43: reassignments.elect_leaders,
    44: configs.incremental_alter_configs,
    45: reassignments.alter_partition_reassignments,
    46: reassignments.list_partition_reassignments,
    47: groups.offset_delete,
    55: reassignments.describe_quorum,
    60: metadata.describe_cluster,
    64: reassignments.unregister_broker,
    75: metadata.describe_topic_partitions,
    10_000: admin.admin,
    10_001: segments.read_segment,
}

__all__ = ["HANDLERS", "Call", "Handler"]
