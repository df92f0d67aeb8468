"""CreateTopics, DeleteTopics, CreatePartitions."""

import asyncio
from collections import Counter

from tidelog.cluster import TOPIC_CONFIGS, AddPartitions, DeleteTopic, Topic
from tidelog.server.handlers.call import Call
from tidelog.server.handlers.configs import topic_setting
from tidelog.server.topics import TopicError, check_assignment, check_room, place, plan_topic, submit, until_led
from tidelog.wire.codec import ZERO_UUID
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    CreatePartitionsRequestTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseTopic,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseConfig,
    CreateTopicsResponseTopic,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
)

DEFAULTS_SINCE = 4  # -1 partitions and replicas mean the default


async def create_topics(call: Call) -> CreateTopicsResponse:
    counts = Counter(topic.name for topic in call.request.topics)

    async def create(asked: CreateTopicsRequestTopic) -> CreateTopicsResponseTopic:
        try:
            if counts[asked.name] > 1:
                raise TopicError(ErrorCode.INVALID_REQUEST, f"{asked.name!r} is named {counts[asked.name]} times")
            return await _create(call, asked)
        except TopicError as error:
            return CreateTopicsResponseTopic(name=asked.name, error_code=error.code, error_message=error.message)

    # Together, so that they share the cluster log's syncs and wait for their leaders at the same time.
    return CreateTopicsResponse(topics=list(await asyncio.gather(*map(create, call.request.topics))))


async def _create(call: Call, asked: CreateTopicsRequestTopic) -> CreateTopicsResponseTopic:
    broker = call.broker
    if asked.assignments and (asked.num_partitions != -1 or asked.replication_factor != -1):
        raise TopicError(ErrorCode.INVALID_REQUEST, "say either an assignment or numbers of partitions and replicas")
    if not asked.assignments and call.version < DEFAULTS_SINCE and asked.num_partitions < 1:
        raise TopicError(ErrorCode.INVALID_PARTITIONS, "the number of partitions must be positive")
    assignment = None
    if asked.assignments:
        ordered = sorted(asked.assignments, key=lambda one: one.partition_index)
        if [one.partition_index for one in ordered] != list(range(len(ordered))):
            raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are numbered from 0 without a gap")
        assignment = [one.broker_ids for one in ordered]
    configs = {config.name: config.value for config in asked.configs}
    missing = [name for name, value in configs.items() if value is None]
    if missing:
        raise TopicError(ErrorCode.INVALID_CONFIG, f"{missing[0]}: a value is needed")
    given = {name: value for name, value in configs.items() if value is not None}
    command = plan_topic(broker, asked.name, asked.num_partitions, asked.replication_factor, assignment, given)
    topic_id = ZERO_UUID
    if not call.request.validate_only:
        deadline_ms = call.deadline_ms(call.request.timeout_ms)
        await submit(broker, command, deadline_ms)
        topic_id = command.id
        topic = broker.topic_of(topic_id)
        if topic is not None:  # else it is deleted already
            await until_led(broker, topic, deadline_ms)
    return CreateTopicsResponseTopic(
        name=asked.name,
        topic_id=topic_id,
        num_partitions=len(command.replicas),
        replication_factor=len(command.replicas[0]),
        configs=[
            CreateTopicsResponseConfig(name=key.name, value=value, config_source=source)
            for key in TOPIC_CONFIGS.values()
            for value, source in (topic_setting(call, key, given),)
        ],
    )


async def delete_topics(call: Call) -> DeleteTopicsResponse:
    asked = call.request.topics or [DeleteTopicsRequestTopic(name=name) for name in call.request.topic_names]
    response = DeleteTopicsResponse()
    for one in asked:
        answer = DeleteTopicsResponseTopic(name=one.name, topic_id=one.topic_id)
        response.responses.append(answer)
        try:
            topic = _named(call, one)
            answer.name, answer.topic_id = topic.name, topic.id
            await submit(call.broker, DeleteTopic(topic.id), call.deadline_ms(call.request.timeout_ms))
        except TopicError as error:
            answer.error_code, answer.error_message = error.code, error.message
    return response


def _named(call: Call, one: DeleteTopicsRequestTopic) -> Topic:
    topic = call.broker.topic_of(one.name if one.name is not None else one.topic_id)
    if topic is None:
        by_name = one.name is not None
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        raise TopicError(code, f"there is no topic {one.name if by_name else one.topic_id}")
    if topic.internal:
        raise TopicError(ErrorCode.INVALID_REQUEST, f"{topic.name} is internal: groups live in it")
    return topic


async def create_partitions(call: Call) -> CreatePartitionsResponse:
    counts = Counter(topic.name for topic in call.request.topics)
    response = CreatePartitionsResponse()
    for asked in call.request.topics:
        answer = CreatePartitionsResponseTopic(name=asked.name)
        response.results.append(answer)
        try:
            if counts[asked.name] > 1:
                raise TopicError(ErrorCode.INVALID_REQUEST, f"{asked.name!r} is named {counts[asked.name]} times")
            await _grow(call, asked)
        except TopicError as error:
            answer.error_code, answer.error_message = error.code, error.message
    return response


async def _grow(call: Call, asked: CreatePartitionsRequestTopic) -> None:
    broker = call.broker
    topic = broker.topic_of(asked.name)
    if topic is None:
        raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {asked.name}")
    before, limit = len(topic.partitions), broker.settings.topic_partitions_max
    if topic.internal:
        raise TopicError(ErrorCode.INVALID_PARTITIONS, f"{topic.name} is internal")
    if not before < asked.count <= limit:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS, f"{asked.count} partitions; there are {before}, {limit} are allowed"
        )
    if asked.assignments is None:
        leader_rack = topic.configs.get("leader.rack")
        replicas = place(broker, asked.count - before, len(topic.partitions[0].replicas), leader_rack)
    else:
        replicas = [tuple(one.broker_ids) for one in asked.assignments]
        if len(replicas) != asked.count - before:
            raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{asked.count - before} partitions need nodes")
        check_assignment(broker, replicas)
    check_room(broker, len(replicas))
    if call.request.validate_only:
        return
    deadline_ms = call.deadline_ms(call.request.timeout_ms)
    await submit(broker, AddPartitions(topic.id, before, [list(nodes) for nodes in replicas]), deadline_ms)
    grown = broker.topic_of(topic.id)
    if grown is not None:
        await until_led(broker, grown, deadline_ms)
