"""The cluster as a replicated state machine: nodes, topics, streams, settings, producer ids.

    machine.apply(command) -> Applied       the only way the state changes, in the order of the cluster's log
    machine.state                           what every node answers clients from

Its log is stream 0 (`CLUSTER_STREAM`): one record a command (`commands`). From time to time a `Snapshot` of the whole
state is written as well, and the log start moves up to it.

Beside it, pure functions for who proposes commands: `placement` (which nodes hold and lead a stream), `planner` (what
the controller does next, so that what shall be comes to be) and `balancing` (evening out, when asked).
"""

from tidelog.cluster.commands import (
    AddPartitions,
    AllotProducerIds,
    AlterNodeConfigs,
    AlterTopicConfigs,
    AssignReplicas,
    Command,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    LeaderRow,
    NoteLeaders,
    ReadmitReplicas,
    RegisterNode,
    RemoveNode,
    SetConfigNodes,
    SetDraining,
    Snapshot,
    UnknownCommandError,
    decode_command,
    encode_command,
)
from tidelog.cluster.configs import (
    TOPIC_CONFIGS,
    ConfigKey,
    ConfigKind,
    InvalidConfigError,
    TopicConfig,
    check_tiering,
    check_topic_config,
)
from tidelog.cluster.machine import Applied, Machine, Rejection
from tidelog.cluster.state import CLUSTER_STREAM, CONFIG_ROLE, DATA_ROLE, ClusterState, Node, Partition, Topic

__all__ = [
    "CLUSTER_STREAM",
    "CONFIG_ROLE",
    "DATA_ROLE",
    "TOPIC_CONFIGS",
    "AddPartitions",
    "AllotProducerIds",
    "AlterNodeConfigs",
    "AlterTopicConfigs",
    "Applied",
    "AssignReplicas",
    "ClusterState",
    "Command",
    "ConfigKey",
    "ConfigKind",
    "CreateTopic",
    "DeleteTopic",
    "FoundCluster",
    "InvalidConfigError",
    "LeaderRow",
    "Machine",
    "Node",
    "NoteLeaders",
    "Partition",
    "ReadmitReplicas",
    "RegisterNode",
    "Rejection",
    "RemoveNode",
    "SetConfigNodes",
    "SetDraining",
    "Snapshot",
    "Topic",
    "TopicConfig",
    "UnknownCommandError",
    "check_tiering",
    "check_topic_config",
    "decode_command",
    "encode_command",
]
