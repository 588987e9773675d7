//! A foreign client, in Python with nats-py, reads what we publish and publishes what we handle.

use std::{path::Path, process::Stdio};

use outbox_tests::{TestDatabase, on_every_database};

use crate::shop::{Script, Shop, shipping};

on_every_database! {
    /// The wire format is readable and writable by a NATS client in another language.
    async fn a_foreign_client_reads_and_writes_our_messages(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let consumer = shop.consumer(&Script::always_ship(), shipping());
        shop.order(1).await;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = tokio::process::Command::new("python3")
            .arg(root.join("interop/foreign.py"))
            .arg(shop.nats.nats().url())
            .env("PYTHONPATH", root.join("../.tools/python"))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("start python3");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "is nats-py missing? `tests/install` installs it\n{errors}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "read 1");
        shop.await_effects([1, 4711]).await;
        assert!(shop.dead_letters().await.is_empty());
        consumer.stop().await;
        relay.stop().await;
    }
}
