//! Three NATS servers that form a cluster.

use crate::{NatsConfig, NatsServer, free_port};

/// Starts three servers on loopback that form a cluster. Server `n` has the tag `place:n`, so that a
/// stream can say where it is to be.
///
/// The cluster has no leader yet when this returns: the first requests may have to be repeated.
pub async fn nats_cluster() -> Vec<NatsServer> {
    let ports = [free_port(), free_port(), free_port()];
    let routes = ports
        .map(|port| format!("nats://127.0.0.1:{port}"))
        .join(", ");
    let mut servers = Vec::new();
    for (number, port) in ports.into_iter().enumerate() {
        let config = format!(
            "server_name: n{number}\nserver_tags: [\"place:{number}\"]\n\
             cluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}"
        );
        servers.push(NatsServer::start_with(NatsConfig::default().extra(&config)).await);
    }
    servers
}
