"""Several nodes: founding, replication, failover, lost disks, new nodes."""

from tests.server.many import ClusterWorld
from tests.server.world import until
from tidelog.cluster import CLUSTER_STREAM


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
