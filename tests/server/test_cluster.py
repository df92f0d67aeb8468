"""Several nodes: founding, replication, failover, lost disks, new nodes."""

from tests.server.client import batch_of, numbered
from tests.server.many import ClusterWorld
from tests.server.world import Server, until
from tidelog.cluster import CLUSTER_STREAM
from tidelog.raft import Envelope
from tidelog.server.handlers.call import outcome


async def test_a_cluster_is_founded_when_all_its_config_servers_are_there(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    ids = {server.broker.state.cluster_id for server in cluster.servers.values()}
    assert len(ids) == 1
    assert all(server.broker.state.founded for server in cluster.servers.values())


async def test_a_config_server_that_lost_its_disk_comes_back_as_a_voter(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    controller = await cluster.controller()
    node = controller.settings.node_id
    await cluster.kill(node)
    cluster.wipe(node)
    again = await cluster.start_node(node)

    def votes() -> bool:
        configuration = again.broker.node.replicas[CLUSTER_STREAM].group.configuration
        return node in configuration.voters and not configuration.joint

    await until(votes)


async def test_a_new_node_is_filled_with_closed_segments_and_becomes_a_voter(cluster: ClusterWorld) -> None:
    await cluster.start(3, storage_segment_bytes=1 << 20)
    await cluster.any.create("t", replication=3)
    leader = await cluster.until_led("t")
    client = await leader.connect()
    for number in range(40):
        await client.produce("t", batch_of(f"{number:06}" * 16_000))
    await until(lambda: leader.high_watermark("t") == 40)
    fourth = await cluster.start_node(4, storage_segment_bytes=1 << 20, roles="data")
    stream = leader.replica("t").stream
    gone = next(node for node in (1, 2, 3) if node != leader.settings.node_id)
    keep = [node for node in (1, 2, 3) if node != gone]
    controller = await cluster.controller()
    await controller.broker.operations.reassign(stream, [*keep, 4], False)

    def moved() -> bool:
        voters = leader.replica("t").group.committed_configuration[1].voters
        return voters == tuple(sorted([*keep, 4]))

    await until(moved)
    assert fourth.broker.assigned.filler.bytes_filled > 1 << 20, "it came as files"
    await until(lambda: fourth.high_watermark("t") == 40)
    await until(lambda: stream not in cluster.servers[gone].broker.node.replicas)


async def test_a_disk_that_was_lost_is_filled_again_and_the_node_votes_again(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await cluster.any.create("t", replication=3)
    leader = await cluster.until_led("t")
    client = await leader.connect()
    await client.produce("t", batch_of("a"))
    lost = next(node for node in (1, 2, 3) if node != leader.settings.node_id)
    await cluster.kill(lost)
    cluster.wipe(lost)
    again = await cluster.start_node(lost)
    stream = leader.replica("t").stream
    await until(lambda: stream in again.broker.node.replicas)
    await until(lambda: again.high_watermark("t") == 1)
    await until(lambda: leader.replica("t").group.committed_configuration[1].voters == (1, 2, 3))


async def test_a_replica_that_fell_behind_the_log_start_begins_anew_and_knows_the_producers(
    cluster: ClusterWorld,
) -> None:
    await cluster.start(3, storage_segment_bytes=1 << 20)
    await cluster.any.create("t", replication=3)
    leader = await cluster.until_led("t")
    producer_id = await leader.new_producer()
    behind = next(node for node in (1, 2, 3) if node != leader.settings.node_id)
    await cluster.stop_node(behind)
    leader = await cluster.until_led("t")
    client = await leader.connect()
    for sequence in range(30):
        answer = await client.produce("t", numbered(producer_id, sequence, "x" * 100_000))
        assert answer.error_code == 0
    leader.replica("t").save()
    for server in cluster.servers.values():
        await until(lambda server=server: server.high_watermark("t") == 30)
    error = await outcome(lambda done: leader.replica("t").move_start(28, leader.broker.now() + 5_000, done))
    assert error == 0
    again = await cluster.start_node(behind, storage_segment_bytes=1 << 20)
    await until(lambda: again.high_watermark("t") == 30)
    assert again.replica("t").log.start_offset == 28
    known = [
        [(b.last_sequence, b.base_offset) for b in server.replica("t").producers._committed[producer_id].batches]
        for server in cluster.servers.values()
    ]
    assert known[0] == known[1] == known[2] == [(sequence, sequence) for sequence in range(25, 30)]


async def test_a_new_leader_answers_only_when_it_has_applied_what_it_inherited(cluster: ClusterWorld) -> None:
    """Between a message that makes the group ready and the turn that applies its entries a client may be read."""
    await cluster.start(3)
    await cluster.any.create("t", replication=3)
    leader = await cluster.until_led("t")
    early: list[int] = []

    def watch(server: Server) -> None:
        receive = server.broker.peers.receive

        def received(envelope: Envelope) -> None:
            receive(envelope)
            replica = server.replica("t")
            leading = replica.group._leading
            if replica.ready and leading is not None and replica._applied_index < leading.term_start:
                early.append(replica.group.term)

        server.broker.peers.receive = received

    for server in cluster.servers.values():
        watch(server)
    client = await leader.connect()
    for number in range(4):
        client.send_produce("t", batch_of(f"{number}"))
        target = next(node for node in cluster.servers if node != leader.settings.node_id)
        leader.broker.node.transfer_leadership(leader.replica("t").stream, target)
        await until(lambda target=target: cluster.servers[target].replica("t").ready)
        leader = cluster.servers[target]
        client = await leader.connect()
    assert early == []
