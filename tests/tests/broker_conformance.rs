//! The brokers behave as the trait says: JetStream on a real server, and the one in the process.

use outbox_tests::conformance::broker::World;
use outbox_tests::unique;

mod jetstream {
    use outbox_nats::{JetStream, StreamSpec};
    use outbox_tests::shared_nats;

    use super::*;

    async fn world() -> World<JetStream> {
        let prefix = unique("conf");
        let broker = JetStream::builder()
            .stream(StreamSpec::new(&prefix, [format!("{prefix}.>")]))
            .dead_letters(format!("{prefix}_DLQ"), format!("dlq_{prefix}"))
            .connect(shared_nats().await.url())
            .await
            .expect("connect");
        World { broker, prefix }
    }

    outbox_tests::broker_conformance!(world);
}

mod memory {
    use outbox_core::MemoryBroker;

    use super::*;

    async fn world() -> World<MemoryBroker> {
        World {
            broker: MemoryBroker::new(),
            prefix: unique("conf"),
        }
    }

    outbox_tests::broker_conformance!(world);
}
