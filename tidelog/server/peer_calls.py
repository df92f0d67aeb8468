"""What nodes ask each other, beside consensus: the answers to calls of `peers`.

founding            does this node know a founded cluster?                        (admission)
register            write down a node; let go of what it was if its disk is lost  (controller)
submit              carry out a command of the cluster                            (controller)
note-leaders        write down who leads streams                                  (controller)
(all others)        operators' requests, `handlers.admin.CONTROLLER_METHODS`      (controller)
change-members      of a stream's group                                           (its leader)
hand-over           the leadership of a stream                                    (its leader)
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidelog.cluster import CLUSTER_STREAM, NoteLeaders, RegisterNode, decode_command
from tidelog.server import admission, operations
from tidelog.server.cluster_log import CommandRefusedError
from tidelog.server.handlers.admin import CONTROLLER_METHODS
from tidelog.server.peers import PeerCallError
from tidelog.server.refusals import error_of
from tidelog.server.replica import Replica
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

SUBMIT_MS_MAX = 60_000


async def answer(broker: "Broker", method: str, content: dict[str, Any]) -> dict[str, Any]:
    found = _METHODS.get(method)
    if found is None and method in CONTROLLER_METHODS:
        _controller(broker)
        found = CONTROLLER_METHODS[method]
    if found is None:
        raise PeerCallError(ErrorCode.UNSUPPORTED_VERSION, f"this node knows no {method!r}: is it older?")
    return await found(broker, content)


async def _founding(broker: "Broker", _content: dict[str, Any]) -> dict[str, Any]:
    return admission.founding(broker)


async def _register(broker: "Broker", content: dict[str, Any]) -> dict[str, Any]:
    replica = _controller(broker)
    fields = content["node"]
    registration = RegisterNode(**{**fields, "roles": tuple(fields["roles"])})
    known = broker.state.nodes.get(registration.node)
    index, configuration = replica.group.committed_configuration
    if known is None and broker.state.founded and not content["blank"]:
        raise PeerCallError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"node {registration.node} was removed from the cluster: to come back, it needs an empty folder",
        )
    if known is not None and known.directory and known.directory != registration.directory:
        if not content["blank"]:
            raise PeerCallError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"node {registration.node} has another disk by now ({known.directory}), and this one "
                f"({registration.directory}) is not empty: it was replaced, or two nodes have the same number",
            )
        if broker.is_alive(registration.node):
            raise PeerCallError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"node {registration.node} is there with its own disk: has another node been given its number?",
            )
        if registration.node in configuration.members:
            # It has forgotten its votes: the group must not count on it before it begins anew.
            await operations.change_members(broker, CLUSTER_STREAM, (), (), (registration.node,))
            index, configuration = replica.group.committed_configuration
    offset = await _submit_here(broker, registration, SUBMIT_MS_MAX)
    return {"offset": offset, "configuration_index": index, "voters": configuration.voters}


async def _submit(broker: "Broker", content: dict[str, Any]) -> dict[str, Any]:
    _controller(broker)
    command = decode_command(content["command"].encode())
    return {"offset": await _submit_here(broker, command, min(content["timeout_ms"], SUBMIT_MS_MAX))}


async def _note_leaders(broker: "Broker", content: dict[str, Any]) -> dict[str, Any]:
    _controller(broker)
    return {"offset": await _submit_here(broker, NoteLeaders(content["rows"]), SUBMIT_MS_MAX)}


async def _change_members(broker: "Broker", content: dict[str, Any]) -> dict[str, Any]:
    await operations.change_members(
        broker,
        content["stream"],
        content["add_learners"],
        content["promote"],
        content["remove"],
        force=content.get("force", False),
    )
    return {}


async def _hand_over(broker: "Broker", content: dict[str, Any]) -> dict[str, Any]:
    await operations.transfer_leader(broker, content["stream"], content["target"])
    return {}


async def _submit_here(broker: "Broker", command: Any, timeout_ms: int) -> int:
    try:
        offset, _ = await broker.cluster.submit_here(command, timeout_ms)
    except CommandRefusedError as error:
        raise PeerCallError(error_of(error.refusal), str(error)) from None
    return offset


def _controller(broker: "Broker") -> Replica:
    replica = broker.node.replicas.get(CLUSTER_STREAM)
    if replica is None or not replica.ready:
        raise PeerCallError(ErrorCode.NOT_CONTROLLER, f"node {broker.settings.node_id} is not the controller")
    return replica


_METHODS: dict[str, Callable[["Broker", dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "founding": _founding,
    "register": _register,
    "submit": _submit,
    "note-leaders": _note_leaders,
    "change-members": _change_members,
    "hand-over": _hand_over,
}
