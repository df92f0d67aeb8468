"""How a node becomes part of its cluster, at every start.

A node that holds the cluster's own log takes part in it at once. One that does not is either one of the first config
servers, and there is no cluster yet; or it is new to a cluster, or has lost its disk. It must not guess: a config
server that begins the log anew has forgotten its votes, and could elect a second leader. So it asks the others, and

* begins the log as one of its voters only if *all* other config servers answer and none may know of a founded cluster
  (one that is founded has been written by a majority, so one of them would know);
* otherwise asks the controller to be let in. That one has the cluster's group let go of what the node was before, and
  only then the node begins with an empty log, as a learner.

Then, and at every later start, the controller writes down where the node is and which disk it has (`RegisterNode`).
"""

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from tidelog.cluster import CLUSTER_STREAM, RegisterNode
from tidelog.server.peers import PeerCallError
from tidelog.storage import StorageError
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

CALL_MS = 2_000
REGISTER_MS = 5_000
RETRY_S = 0.05
ASK_AGAIN_S = 0.2
WATCH_S = 1.0
NOT_NOW = (ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)
LOST_ROUNDS = 3  # so many times in a row without a controller
SAY_AFTER_S = 5.0  # how long to wait in silence


async def enter(broker: "Broker", registration: RegisterNode) -> None:
    """Returns when the node is registered, and its copy of the cluster's state says so. Waits as long as it takes."""
    waiting = asyncio.get_running_loop().call_later(SAY_AFTER_S, _say_waiting, broker)
    try:
        if CLUSTER_STREAM not in broker.node.replicas:
            await _begin(broker, registration)
        offset = await _register(broker, registration)
        await broker.cluster.until_applied(offset)
    finally:
        waiting.cancel()


def _say_waiting(broker: "Broker") -> None:
    servers = set(broker.settings.config_servers) - {broker.settings.node_id}
    away = sorted(servers - broker.peers.connected)
    log.warning(
        "node %d waits for its cluster; config servers it does not reach: %s",
        broker.settings.node_id,
        ", ".join(map(str, away)) or "none",
    )


async def _begin(broker: "Broker", registration: RegisterNode) -> None:
    servers = broker.settings.config_servers
    me = broker.settings.node_id
    while servers:
        known = await asyncio.gather(*(_founding(broker, node) for node in servers if node != me))
        if any(answer is not None and answer["founded"] for answer in known):
            index, voters = await _ask_in(broker, registration)
            broker.follow_cluster([node for node in voters if node != me], index)
            return
        if me in servers and all(answer is not None and not answer["unsure"] for answer in known):
            break
        await asyncio.sleep(RETRY_S)
    broker.follow_cluster(sorted(servers) or [me])


async def _founding(broker: "Broker", node: int) -> dict[str, Any] | None:
    """What another config server knows of a founded cluster; None when it does not answer."""
    try:
        return await broker.peers.call(node, "founding", {}, CALL_MS)
    except PeerCallError:
        return None


async def _ask_in(broker: "Broker", registration: RegisterNode) -> tuple[int, list[int]]:
    """Have the controller let go of what this node was; gives the voters of the cluster's log, and since when."""
    content = {"node": dataclasses.asdict(registration), "blank": True}
    said = ""
    while True:
        for node in broker.settings.config_servers:
            try:
                answer = await broker.peers.call(node, "register", content, REGISTER_MS)
            except PeerCallError as error:
                if error.code not in NOT_NOW and error.message != said:
                    said = error.message
                    log.warning("node %d does not let this one in yet: %s", node, said)
            else:
                return answer["configuration_index"], answer["voters"]
        await asyncio.sleep(ASK_AGAIN_S)


async def _register(broker: "Broker", registration: RegisterNode) -> int:
    """Have the controller write down this node; gives the command's offset."""
    content = {"node": dataclasses.asdict(registration), "blank": False}
    while True:
        try:
            return (await broker.at_controller("register", content, CALL_MS))["offset"]
        except PeerCallError as error:
            _end_if_refused(error)
            log.debug("not registered yet: %s", error.message)
        for node in broker.settings.config_servers:  # the cluster's group may have let go of this node
            try:
                await broker.peers.call(node, "register", content, REGISTER_MS)
            except PeerCallError as error:
                _end_if_refused(error)
        await asyncio.sleep(RETRY_S)


def _end_if_refused(error: PeerCallError) -> None:
    if error.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
        raise StorageError(error.message) from None


async def watch(broker: "Broker", registration: RegisterNode) -> None:
    """End this node when it was removed: the cluster's group, which let go of it, may not have told it."""
    content = {"node": dataclasses.asdict(registration), "blank": False}
    lost = 0
    while True:
        await asyncio.sleep(WATCH_S)
        lost = lost + 1 if broker.controller < 0 else 0
        for node in broker.settings.config_servers if lost >= LOST_ROUNDS else ():
            try:
                await broker.peers.call(node, "register", content, REGISTER_MS)
            except PeerCallError as error:
                if error.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                    broker.node.fail(StorageError(error.message))
                    return


def founding(broker: "Broker") -> dict[str, Any]:
    """What this node knows, for one that asks. Entries that it has not applied may be of a founded cluster."""
    replica = broker.node.replicas.get(CLUSTER_STREAM)
    unsure = replica is not None and broker.cluster.offset < replica.log.next_offset
    return {"founded": broker.state.founded, "unsure": unsure}
