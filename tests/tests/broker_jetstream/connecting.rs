//! Connecting: what is wrong is said at once, and by its name.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outbox_core::broker::{Broker, BrokerError, BrokerErrorKind, Publisher};
use outbox_nats::JetStream;
use outbox_tests::{Log, NatsConfig, NatsServer, WorkDir, eventually, free_port};
use tracing_subscriber::filter::LevelFilter;

use super::{RECOVERY, SOON, message, shop};

async fn refused(url: &str) -> BrokerError {
    let start = Instant::now();
    let error = JetStream::connect(url).await.expect_err("refused");
    assert!(
        start.elapsed() < Duration::from_secs(6),
        "{:?}: {error}",
        start.elapsed()
    );
    error
}

#[tokio::test]
async fn a_wrong_address_is_said_at_once() {
    let closed = format!("nats://127.0.0.1:{}", free_port());
    let error = refused(&closed).await;
    assert_eq!(error.kind(), BrokerErrorKind::Unavailable);
    assert!(error.to_string().contains("refused"), "{error}");

    let error = refused("nats://no-such-host.invalid:4222").await;
    assert_eq!(error.kind(), BrokerErrorKind::Unavailable);
    assert!(
        error.to_string().contains("no-such-host.invalid"),
        "{error}"
    );

    let error = refused("").await;
    assert_eq!(error.kind(), BrokerErrorKind::Configuration);
}

#[tokio::test]
async fn a_wrong_password_is_said_and_never_shown() {
    let server = NatsServer::start_with(NatsConfig::default().user("app", "s3cr3t/#@:%")).await;
    let right = server
        .nats()
        .url()
        .replace("nats://", "nats://app:s3cr3t%2F%23%40%3A%25@");
    let wrong = server
        .nats()
        .url()
        .replace("nats://", "nats://app:hunter2@");

    let error = refused(&wrong).await;
    assert_eq!(error.kind(), BrokerErrorKind::Configuration);
    assert!(
        error.to_string().contains("authorization violation"),
        "{error}"
    );
    assert!(!format!("{error} {error:?}").contains("hunter2"));

    let broker = JetStream::connect(right).await.expect("connect");
    assert!(!format!("{broker:?}").contains("s3cr3t"));
    JetStream::builder()
        .user_and_password("app", "s3cr3t/#@:%")
        .connect(server.nats().url())
        .await
        .expect("connect");
}

/// Whatever goes wrong, and however much is logged.
#[tokio::test]
async fn no_secret_is_logged_even_at_the_finest_level() {
    let users = r#"authorization { users: [ { user: "app", password: "hunter2-right" } ] }"#;
    let server = NatsServer::start_with(NatsConfig::default().extra(users)).await;
    let url = server.nats().url();
    let (log, _guard) = Log::of_this_thread(LevelFilter::TRACE);
    let refused = [
        shop().user_and_password("app", "hunter2-wrong"),
        shop().token("hunter2-token"),
        shop().nkey("hunter2-seed"),
        shop().credentials("hunter2-credentials"),
    ];
    for builder in refused {
        assert_silent(&format!("{builder:?}"));
        let error = builder.connect(url).await.expect_err("refused");
        assert_silent(&format!("{error} {error:?}"));
    }
    let in_address = url.replace("nats://", "nats://app:hunter2-right@");
    for (builder, address) in [
        (shop().user_and_password("app", "hunter2-right"), url),
        (shop(), in_address.as_str()),
    ] {
        let broker = builder.connect(address).await.expect("connect");
        assert_silent(&format!("{broker:?}"));
        let publisher = broker.publisher().await.expect("a publisher");
        server.restart().await;
        eventually("it is connected again", RECOVERY, async || {
            publisher.connected()
        })
        .await;
        publisher
            .publish(message("shop.orders", "hello"))
            .await
            .expect("publish");
    }
    let lines = log.lines();
    assert!(lines.len() > 100, "this was logged at its finest");
    for line in lines {
        assert_silent(&line);
    }
}

fn assert_silent(text: &str) {
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn tls_that_the_server_does_not_speak_is_said() {
    let server = NatsServer::start().await;
    let builder = JetStream::builder().require_tls();
    let start = Instant::now();
    let error = builder
        .connect(server.nats().url())
        .await
        .expect_err("refused");
    assert!(start.elapsed() < Duration::from_secs(6));
    assert!(error.to_string().to_lowercase().contains("tls"), "{error}");
}

#[tokio::test]
async fn one_good_server_of_two_is_enough() {
    let server = NatsServer::start().await;
    let closed = format!("nats://127.0.0.1:{}", free_port());
    for urls in [
        format!("{closed},{}", server.nats().url()),
        format!("{}, {closed}", server.nats().url()),
    ] {
        let broker = JetStream::connect(urls).await.expect("connect");
        assert!(broker.is_connected());
    }
}

#[tokio::test]
async fn a_server_without_jetstream_is_said() {
    let server = NatsServer::start_with(NatsConfig::default().without_jetstream()).await;
    let error = refused(server.nats().url()).await;
    assert_eq!(error.kind(), BrokerErrorKind::Configuration);
    assert!(
        error.to_string().contains("JetStream is not available"),
        "{error}"
    );
}

#[tokio::test]
async fn an_account_without_jetstream_is_said() {
    let accounts = r#"accounts { A: { users: [ { user: "a", password: "a" } ] }, B: { jetstream: enabled, users: [ { user: "b", password: "b" } ] } }"#;
    let server = NatsServer::start_with(NatsConfig::default().extra(accounts)).await;
    let url = |user: &str| {
        server
            .nats()
            .url()
            .replace("nats://", &format!("nats://{user}:{user}@"))
    };
    let error = refused(&url("a")).await;
    assert_eq!(error.kind(), BrokerErrorKind::Configuration);
    assert!(error.to_string().contains("JetStream"), "{error}");
    JetStream::connect(url("b")).await.expect("connect");
}

#[tokio::test]
async fn waiting_for_the_server_is_possible() {
    let server = NatsServer::start().await;
    server.kill();
    let broker = shop()
        .wait_for_server()
        .connect(server.nats().url())
        .await
        .expect("connecting goes on");
    assert!(!broker.is_connected());
    let error = broker.connection_error().expect("the reason");
    assert!(error.to_string().contains("refused"), "{error}");
    let publisher = broker.publisher().await.expect("a publisher");
    server.restart().await;
    // The stream is made when it is first missed.
    eventually("a confirmation", SOON, async || {
        publisher.publish(message("shop.a", "a")).await
    })
    .await;
}

/// A server that refuses us counts as one that is away, if we wait.
#[tokio::test]
async fn waiting_outlasts_a_refusal() {
    let server = NatsServer::start_with(NatsConfig::default().user("app", "app")).await;
    let broker = JetStream::builder()
        .user_and_password("app", "wrong")
        .wait_for_server()
        .connect(server.nats().url())
        .await
        .expect("connecting goes on");
    assert!(!broker.is_connected());
    let error = broker.connection_error().expect("the reason");
    assert!(
        error.to_string().contains("authorization violation"),
        "{error}"
    );
}

/// The server's user gets another password, and ours is renewed a little later.
#[tokio::test]
async fn renewed_credentials_are_used_for_the_next_connection() {
    let dir = WorkDir::new("users");
    let file = dir.path().join("users.conf");
    let users = |password: &str| {
        let text = format!("authorization {{ users: [ {{ user: app, password: {password} }} ] }}");
        std::fs::write(&file, text).expect("write the users");
    };
    users("one");
    // Included files are looked for below that of the configuration.
    let include = format!(
        "include {:?}",
        format!("{}{}", "../".repeat(20), file.display())
    );
    let server = NatsServer::start_with(NatsConfig::default().extra(&include)).await;
    let password = Arc::new(Mutex::new("one".to_owned()));
    let shared = password.clone();
    let broker = shop()
        .options(move || {
            let password = shared.lock().expect("a password").clone();
            async_nats::ConnectOptions::new().user_and_password("app".to_owned(), password)
        })
        .connect(server.nats().url())
        .await
        .expect("connect");
    let publisher = broker.publisher().await.expect("a publisher");
    publisher
        .publish(message("shop.a", "a"))
        .await
        .expect("published");

    users("two");
    server.kill();
    server.restart().await;
    eventually("a visible refusal", SOON, async || {
        broker
            .connection_error()
            .filter(|error| error.to_string().contains("authorization violation"))
    })
    .await;
    let error = broker.publisher().await.expect_err("refused");
    assert_eq!(error.kind(), BrokerErrorKind::Configuration);
    *password.lock().expect("a password") = "two".to_owned();
    eventually("a connection", SOON, async || broker.is_connected()).await;
    eventually("a confirmation", SOON, async || {
        publisher.publish(message("shop.a", "b")).await
    })
    .await;
}
