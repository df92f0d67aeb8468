"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, DescribeLogDirs."""

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.cluster import TOPIC_CONFIGS, AlterNodeConfigs, AlterTopicConfigs, Command, ConfigKey, ConfigKind
from tidelog.server.handlers.call import Call
from tidelog.server.settings import Settings, SettingsError, dotted, field_of
from tidelog.server.topics import TopicError, check_configs, check_tiers, submit
from tidelog.storage import Folder
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    AlterConfigsResponse,
    AlterConfigsResponseResource,
    DescribeConfigsEntry,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    IncrementalAlterConfigsResponse,
)

TOPIC, NODE = 2, 4
SOURCE_TOPIC, SOURCE_NODE_LIVE, SOURCE_ALL_LIVE, SOURCE_NODE_STATIC, SOURCE_DEFAULT = 1, 2, 3, 4, 5
SET, DELETE = 0, 1
ALTER_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting as it is in force."""

    name: str
    value: str
    source: int
    kind: ConfigKind
    doc: str
    read_only: bool = False


# Describing


def describe_configs(call: Call) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_describe(call, resource) for resource in call.request.resources])


def _describe(call: Call, resource: DescribeConfigsRequestResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        settings = _settings_of(call, resource.resource_type, resource.resource_name)
    except TopicError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    keys = resource.configuration_keys
    wanted = [setting for setting in settings if keys is None or setting.name in keys]
    result.configs = [_entry(call, setting) for setting in wanted]
    return result


def _entry(call: Call, setting: _Setting) -> DescribeConfigsEntry:
    synonyms: list[DescribeConfigsSynonym] = []
    if call.request.include_synonyms:
        synonyms.append(DescribeConfigsSynonym(name=setting.name, value=setting.value, source=setting.source))
    return DescribeConfigsEntry(
        name=setting.name,
        value=setting.value,
        read_only=setting.read_only,
        is_default=setting.source == SOURCE_DEFAULT,
        config_source=setting.source,
        synonyms=synonyms,
        config_type=setting.kind,
        documentation=setting.doc if call.request.include_documentation else None,
    )


def topic_setting(call: Call, key: ConfigKey, given: Mapping[str, str]) -> tuple[str, int]:
    """(value, source) of one of a topic's settings."""
    if key.name in given:
        return given[key.name], SOURCE_TOPIC
    if key.name in call.broker.topic_defaults:
        return call.broker.topic_defaults[key.name], SOURCE_NODE_STATIC
    return key.default, SOURCE_DEFAULT


def _settings_of(call: Call, resource_type: int, name: str) -> list[_Setting]:
    if resource_type == TOPIC:
        topic = call.broker.topic_of(name)
        if topic is None:
            raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return [
            _Setting(key.name, *topic_setting(call, key, topic.configs), key.kind, key.doc)
            for key in TOPIC_CONFIGS.values()
        ]
    if resource_type == NODE:
        return _settings_of_node(call, _node_name(call, name))
    raise TopicError(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no settings here")


def _settings_of_node(call: Call, node: str) -> list[_Setting]:
    changed, defaults, static = call.broker.state.node_configs, Settings(), call.broker.settings
    settings: list[_Setting] = []
    for item in dataclasses.fields(Settings):
        name, value = dotted(item.name), getattr(static, item.name)
        source = SOURCE_DEFAULT if value == getattr(defaults, item.name) else SOURCE_NODE_STATIC
        text = str(value).lower() if isinstance(value, bool) else str(value)
        for where, live_source in (("", SOURCE_ALL_LIVE), (node, SOURCE_NODE_LIVE)):
            if name in changed.get(where, {}):
                text, source = changed[where][name], live_source
        kind = {bool: ConfigKind.BOOLEAN, int: ConfigKind.LONG}.get(type(value), ConfigKind.STRING)
        settings.append(_Setting(name, text, source, kind, item.metadata["doc"], not item.metadata["live"]))
    return settings


def _node_name(call: Call, name: str) -> str:
    """A node's number as text; "" for all of them. Each node answers for itself."""
    if name not in ("", str(call.broker.settings.node_id)):
        raise TopicError(ErrorCode.INVALID_REQUEST, f"this is node {call.broker.settings.node_id}, not {name!r}")
    return name


# Changing


async def alter_configs(call: Call) -> AlterConfigsResponse:
    """Replaces all that was set: what is not named goes back to its default."""
    response = AlterConfigsResponse()
    for resource in call.request.resources:
        changes: dict[str, str | None] = dict.fromkeys(_set_now(call, resource.resource_type, resource.resource_name))
        changes |= {config.name: config.value for config in resource.configs}
        response.responses.append(await _alter(call, resource.resource_type, resource.resource_name, changes))
    return response


async def incremental_alter_configs(call: Call) -> IncrementalAlterConfigsResponse:
    response = IncrementalAlterConfigsResponse()
    for resource in call.request.resources:
        changes: dict[str, str | None] = {}
        problem = None
        for config in resource.configs:
            if config.config_operation not in (SET, DELETE):
                problem = f"{config.name}: only SET and DELETE are known, no setting is a list"
            elif config.name in changes:
                problem = f"{config.name} is named twice"
            changes[config.name] = config.value if config.config_operation == SET else None
            if config.config_operation == SET and config.value is None:
                problem = f"{config.name}: a value is needed"
        answer = await _alter(call, resource.resource_type, resource.resource_name, changes, problem)
        response.responses.append(answer)
    return response


def _set_now(call: Call, resource_type: int, name: str) -> Mapping[str, str]:
    if resource_type == TOPIC:
        topic = call.broker.topic_of(name)
        return {} if topic is None else topic.configs
    return call.broker.state.node_configs.get(name, {})


async def _alter(
    call: Call, resource_type: int, name: str, changes: dict[str, str | None], problem: str | None = None
) -> AlterConfigsResponseResource:
    answer = AlterConfigsResponseResource(resource_type=resource_type, resource_name=name)
    try:
        if problem is not None:
            raise TopicError(ErrorCode.INVALID_REQUEST, problem)
        command = _command(call, resource_type, name, changes)
        if not call.request.validate_only:
            await submit(call.broker, command, call.deadline_ms(ALTER_TIMEOUT_MS))
    except TopicError as error:
        answer.error_code, answer.error_message = error.code, error.message
    return answer


def _command(call: Call, resource_type: int, name: str, changes: dict[str, str | None]) -> Command:
    values = {key: value for key, value in changes.items() if value is not None}
    if resource_type == TOPIC:
        topic = call.broker.topic_of(name)
        if topic is None:
            raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        check_configs(values)
        unknown = next((key for key in changes if key not in TOPIC_CONFIGS), None)
        if unknown is not None:
            raise TopicError(ErrorCode.INVALID_CONFIG, f"there is no topic setting {unknown!r}")
        after = {key: value for key, value in topic.configs.items() if key not in changes} | values
        check_tiers(call.broker, after, topic.configs)
        return AlterTopicConfigs(topic.id, changes)
    if resource_type == NODE:
        node = _node_name(call, name)
        try:
            fixed = next((key for key in changes if not field_of(key).metadata["live"]), None)
            call.broker.settings.changed(values)
        except SettingsError as error:
            raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if fixed is not None:
            raise TopicError(ErrorCode.INVALID_CONFIG, f"{fixed} cannot be changed while the node runs")
        return AlterNodeConfigs(node, changes)
    raise TopicError(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no settings here")


# What lies on disk


def describe_log_dirs(call: Call) -> DescribeLogDirsResponse:
    node, asked = call.broker.node, call.request.topics
    wanted = None if asked is None else {topic.topic: set(topic.partitions) for topic in asked}
    held: dict[int, tuple[str, DescribeLogDirsPartition]] = {}
    for topic in call.broker.state.topics.values():
        for number, partition in enumerate(topic.partitions):
            replica = node.replicas.get(partition.stream)
            if replica is not None and (wanted is None or number in wanted.get(topic.name, ())):
                size = replica.log.size_bytes
                found = DescribeLogDirsPartition(partition_index=number, partition_size=size)
                held[partition.stream] = topic.name, found
    return DescribeLogDirsResponse(results=[_log_dir(folder, held) for folder in node.folders])


def _log_dir(folder: Folder, held: Mapping[int, tuple[str, DescribeLogDirsPartition]]) -> DescribeLogDirsResult:
    """What lies in one folder, of the streams that were asked for."""
    topics: dict[str, DescribeLogDirsTopic] = {}
    for stream, (name, partition) in held.items():
        if stream in folder.streams:
            topics.setdefault(name, DescribeLogDirsTopic(name=name)).partitions.append(partition)
    usage = shutil.disk_usage(folder.path)
    return DescribeLogDirsResult(
        log_dir=folder.path, topics=list(topics.values()), total_bytes=usage.total, usable_bytes=usage.free
    )
