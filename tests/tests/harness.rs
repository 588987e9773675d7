//! The harness itself: servers start, answer and come back; faults are real.

use std::time::{Duration, Instant};

use outbox_tests::{
    Child, Direction, MariaDb, NatsConfig, NatsServer, Postgres, PostgresConfig, Proxy,
    TestDatabase, WorkDir, connect, count_messages, create_stream, eventually, on_every_database,
    read_stream, shared_nats, unique,
};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};

const SOON: Duration = Duration::from_secs(10);

async fn insert(connection: &DatabaseConnection) -> Result<(), DbErr> {
    connection
        .execute_unprepared("INSERT INTO things (n) VALUES (1)")
        .await
        .map(drop)
}

async fn inserts_at_once(connection: &DatabaseConnection) -> bool {
    let insert = tokio::time::timeout(Duration::from_millis(300), insert(connection));
    matches!(insert.await, Ok(Ok(())))
}

async fn create_table(connection: &DatabaseConnection) {
    let create = "CREATE TABLE things (n INT NOT NULL)";
    connection
        .execute_unprepared(create)
        .await
        .expect("create a table");
}

async fn count(connection: &DatabaseConnection) -> usize {
    let rows = connection.query_all_raw(sea_orm::Statement::from_string(
        connection.get_database_backend(),
        "SELECT n FROM things",
    ));
    rows.await.expect("read the table").len()
}

on_every_database! {
    /// Two tests never see each other's tables.
    async fn each_test_has_a_database_of_its_own(db: TestDatabase) {
        create_table(&db.connection).await;
        insert(&db.connection).await.expect("insert");
        assert_eq!(count(&db.connect(1).await).await, 1);
        create_table(&db.kind.fresh().await.connection).await;
    }
}

/// Commits, kills, restarts, reads, freezes and thaws.
macro_rules! a_database_server_comes_back {
    ($server:expr) => {{
        let server = $server;
        let url = server.create_database().await;
        let connection = connect(&url, 1).await.expect("connect");
        create_table(&connection).await;
        insert(&connection).await.expect("insert");

        server.kill();
        assert!(!inserts_at_once(&connection).await, "the server is dead");
        server.restart().await;
        let connection = connect(&url, 1).await.expect("connect again");
        assert_eq!(
            count(&connection).await,
            1,
            "what was committed is still there"
        );

        server.freeze();
        assert!(
            !inserts_at_once(&connection).await,
            "a frozen server does not answer"
        );
        server.thaw();
        eventually("the thawed server answers", SOON, async || {
            insert(&connection).await
        })
        .await;
        server.stop().await;
    }};
}

#[tokio::test]
async fn postgres_comes_back() {
    a_database_server_comes_back!(Postgres::start_with(PostgresConfig::default().durable()).await);
}

#[tokio::test]
async fn mariadb_comes_back() {
    a_database_server_comes_back!(MariaDb::start().await);
}

#[tokio::test]
async fn nats_comes_back_with_its_streams() {
    let server = NatsServer::start().await;
    let jetstream = server.nats().jetstream().await;
    create_stream(&jetstream, "S", &["s.>"]).await;
    for word in ["one", "two"] {
        let ack = jetstream
            .publish("s.a", word.into())
            .await
            .expect("publish");
        ack.await.expect("acknowledged");
    }
    server.kill();
    server.restart().await;
    let jetstream = server.nats().jetstream().await;
    let stored = read_stream(&jetstream, "S").await;
    assert_eq!(
        stored
            .iter()
            .map(|message| message.text())
            .collect::<Vec<_>>(),
        ["one", "two"]
    );

    server.wipe().await;
    let jetstream = server.nats().jetstream().await;
    assert!(
        jetstream.get_stream("S").await.is_err(),
        "a wiped server has no stream"
    );
    server.stop().await;
}

#[tokio::test]
async fn nats_obeys_its_configuration() {
    let config = NatsConfig::default()
        .without_jetstream()
        .max_payload(1000)
        .user("a", "secret");
    let server = NatsServer::start_with(config).await;
    assert!(
        async_nats::connect(server.nats().url()).await.is_err(),
        "a user is required"
    );
    let user = async_nats::ConnectOptions::with_user_and_password("a".into(), "secret".into());
    let client = server.nats().connect_with(user).await;
    assert_eq!(client.server_info().max_payload, 1000);
    let jetstream = async_nats::jetstream::new(client);
    assert!(jetstream.query_account().await.is_err(), "JetStream is off");
}

#[tokio::test]
async fn the_shared_nats_server_has_jetstream() {
    let jetstream = shared_nats().await.jetstream().await;
    let stream = unique("shared");
    create_stream(&jetstream, &stream, &[&stream]).await;
    assert_eq!(count_messages(&jetstream, &stream).await, 0);
}

#[tokio::test]
async fn a_proxy_breaks_the_network_and_repairs_it() {
    let nats = shared_nats().await;
    let proxy = Proxy::start(nats.url()).await;
    let url = proxy.through(nats.url());
    let client = async_nats::connect(&url)
        .await
        .expect("connect through the proxy");
    let round_trip = async || {
        let request = async_nats::Request::new().timeout(Some(Duration::from_millis(500)));
        client.send_request("$SYS.REQ.USER.INFO", request).await
    };
    round_trip().await.expect("the network works");

    proxy.delay(Duration::from_millis(100));
    let start = Instant::now();
    round_trip().await.expect("the network is slow");
    assert!(
        start.elapsed() >= Duration::from_millis(200),
        "both directions are late"
    );

    proxy.restore().await;
    proxy.pause();
    let lost = tokio::time::timeout(Duration::from_millis(200), round_trip()).await;
    assert!(lost.is_err(), "nothing comes through");
    assert_eq!(proxy.connections(), 1, "but the connection lives");
    proxy.restore().await;
    round_trip().await.expect("the network works again");

    proxy.drop_direction(Direction::Downstream);
    let lost = tokio::time::timeout(Duration::from_millis(200), round_trip()).await;
    assert!(lost.is_err(), "no answer comes back");
    proxy.restore().await;
    eventually("a new connection", SOON, async || round_trip().await).await;

    proxy.cut().await;
    assert_eq!(proxy.connections(), 0);
    assert!(
        async_nats::connect(&url).await.is_err(),
        "new connections are refused"
    );
    proxy.restore().await;
    eventually("a new connection", SOON, async || round_trip().await).await;
    proxy.reset().await;
    eventually("a new connection", SOON, async || round_trip().await).await;
}

#[tokio::test]
async fn a_child_is_read_and_killed() {
    let script = "echo ready $NAME; read line; echo got $line; sleep 600";
    let child = Child::spawn("/bin/sh", &["-c", script], &[("NAME", "bob")]);
    assert_eq!(child.line_with("ready", SOON).await, "ready bob");
    child.write_line("hello");
    child.line_with("got hello", SOON).await;
    child.kill();
    let status = child.exit(SOON).await;
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
    assert_eq!(child.lines(), ["ready bob", "got hello"]);
}

#[tokio::test]
#[should_panic(expected = "the tea is ready: not within 50ms")]
async fn waiting_in_vain_says_for_what() {
    eventually("the tea is ready", Duration::from_millis(50), async || {
        Err::<(), _>("cold")
    })
    .await;
}

#[test]
fn a_directory_goes_with_its_owner() {
    let dir = WorkDir::new("test");
    let path = dir.path().to_owned();
    assert!(path.is_dir());
    drop(dir);
    assert!(!path.exists());
}
