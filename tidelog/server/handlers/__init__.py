"""What is done with each request other than Produce and Fetch: a function from the request to its answer."""

from tidelog.server.handlers import configs, groups, metadata, offsets, producers, topics
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
    44: configs.incremental_alter_configs,
    47: groups.offset_delete,
    60: metadata.describe_cluster,
    75: metadata.describe_topic_partitions,
}

__all__ = ["HANDLERS", "Call", "Handler"]
