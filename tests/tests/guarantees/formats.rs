//! What is stored outlives the build that stored it. Here rows, messages, dead letters and replays are
//! spelled out: each build has to read them, and to write the same.

use std::collections::BTreeMap;

use async_nats::HeaderMap;
use outbox_core::{DeadLetterFilter, Publish};
use outbox_tests::{
    Database, NatsConfig, NatsServer, StoredMessage, TestDatabase, eventually, on_every_database,
    read_stream,
};
use sea_orm::{ConnectionTrait, Statement, TransactionTrait};
use uuid::Uuid;

use crate::shop::{Act, DEADLINE, OrderPlaced, Script, Shop, shipping};

const ID: &str = "01940000-0000-7000-8000-000000000007";
const KEY: &str = "Zoë & co";
const ROW_HEADERS: &str = "ce-source: old%20shop\nce-correlationid: c%201\ntenant: Zoë\n";
const PAYLOAD: &str = r#"{"number":7,"customer":"Zoë & co"}"#;
const TIME: &str = "2026-01-02T03:04:05.678901Z";

/// A message of the row.
const MESSAGE: [(&str, &str); 10] = [
    ("Nats-Msg-Id", ID),
    ("ce-specversion", "1.0"),
    ("ce-id", ID),
    ("ce-source", "old%20shop"),
    ("ce-type", "shop.orders.placed"),
    ("ce-time", TIME),
    ("ce-datacontenttype", "application/json"),
    ("ce-partitionkey", "Zo%C3%AB%20&%20co"),
    ("ce-correlationid", "c%201"),
    ("tenant", "Zoë"),
];

const LETTER_SUBJECT: &str = "outbox.dlq.letter.shipping.SHOP.41.1767323046000000001";
/// Where the body is of a letter that is too large for one message.
const BODY_SUBJECT: &str = "outbox.dlq.letter.shipping.SHOP.41.1767323046000000001.body";
const REPLAY_SUBJECT: &str = "outbox.dlq.replay.shipping.SHOP.41.1767323046000000001.3";

/// What a dead letter and its replay have beside the headers of the message.
const IDENTITY: [(&str, &str); 6] = [
    ("outbox-consumer", "shipping"),
    ("outbox-stream", "SHOP"),
    ("outbox-sequence", "41"),
    ("outbox-stored-at", "2026-01-02T03:04:06.000000001Z"),
    ("outbox-subject", "shop.orders.placed"),
    ("outbox-message-id", ID),
];

/// What a dead letter has beside that.
const HISTORY: [(&str, &str); 8] = [
    ("outbox-reason", "out-of-attempts"),
    ("outbox-error", "the carrier is closed"),
    ("outbox-first-error", "the carrier is on strike"),
    ("outbox-attempts", "5"),
    ("outbox-deliveries", "6"),
    ("outbox-replays", "1"),
    ("outbox-first-failed-at", "2026-01-02T03:05:00Z"),
    ("outbox-dead-at", "2026-01-02T03:06:00Z"),
];

fn headers<'a>(headers: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, *value);
    }
    map
}

/// The headers of a message.
fn found(message: &StoredMessage) -> BTreeMap<String, String> {
    let found = message.headers.iter().map(|(name, values)| {
        let values: Vec<_> = values.iter().map(async_nats::HeaderValue::as_str).collect();
        (name.to_string(), values.join(" | "))
    });
    found.collect()
}

fn expected<'a>(
    headers: impl IntoIterator<Item = &'a (&'a str, &'a str)>,
) -> BTreeMap<String, String> {
    let headers = headers.into_iter();
    headers
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// A message id, text as bytes and a time, as the database's columns hold them.
fn literals(kind: Database) -> (String, String, String) {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let (id, payload) = (ID.replace('-', ""), hex(PAYLOAD.as_bytes()));
    match kind {
        Database::Postgres => (
            format!("'{ID}'"),
            format!("'\\x{payload}'"),
            format!("'{TIME}'"),
        ),
        Database::MariaDb => (
            format!("X'{id}'"),
            format!("X'{payload}'"),
            "'2026-01-02 03:04:05.678901'".to_owned(),
        ),
        Database::Sqlite => (
            format!("X'{id}'"),
            format!("X'{payload}'"),
            "1767323045678901".to_owned(),
        ),
    }
}

on_every_database! {
    async fn a_row_is_published_as_it_always_was(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let (id, payload, time) = literals(shop.db.kind);
        let insert = format!(
            "INSERT INTO outbox (message_id, event_type, event_version, subject, ordering_key, headers, payload, occurred_at) \
             VALUES ({id}, 'shop.orders.placed', 1, 'shop.orders.placed', '{KEY}', '{ROW_HEADERS}', {payload}, {time})",
        );
        shop.db.connection.execute_unprepared(&insert).await.unwrap();
        let relay = shop.relay();
        shop.await_published([7]).await;
        let stream = shop.stream().await;
        assert_eq!(found(&stream[0]), expected(&MESSAGE));
        assert_eq!(stream[0].payload, PAYLOAD);
        relay.stop().await;
    }

    async fn a_row_is_written_as_it_always_was(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let bus = outbox_core::Bus::builder(outbox_seaorm::SeaOrm::new(shop.db.connection.clone())).source("old shop").build();
        let options = Publish::new().id(Uuid::parse_str(ID).unwrap()).correlation_id("c 1").header("tenant", "Zoë");
        let tx = shop.db.connection.begin().await.unwrap();
        let order = OrderPlaced { number: 7, customer: Some(KEY.to_owned()) };
        bus.publish_with(&tx, &order, options).await.unwrap();
        tx.commit().await.unwrap();
        let (id, payload, _) = literals(shop.db.kind);
        let headers = match shop.db.kind {
            // Its collation takes some texts for the same.
            Database::MariaDb => format!("BINARY headers = BINARY '{ROW_HEADERS}'"),
            _ => format!("headers = '{ROW_HEADERS}'"),
        };
        let same = format!(
            "outbox WHERE message_id = {id} AND event_type = 'shop.orders.placed' AND event_version = 1 \
             AND subject = 'shop.orders.placed' AND ordering_key = '{KEY}' AND payload = {payload} AND {headers}"
        );
        let row = Statement::from_string(shop.db.connection.get_database_backend(), "SELECT headers FROM outbox");
        let row = shop.db.connection.query_one_raw(row).await.unwrap().unwrap();
        assert_eq!(shop.count(&same).await, 1, "{:?}", row.try_get::<String>("", "headers"));
    }
}

/// A shop whose consumer has run and has made what it needs.
async fn shop_with_a_dead_letter_stream(nats: NatsServer) -> Shop {
    let shop = Shop::open_with(Database::Sqlite.fresh().await, nats).await;
    let consumer = shop.consumer(&Script::always_ship(), shipping());
    let jetstream = shop.nats.nats().jetstream().await;
    eventually("the dead-letter stream", DEADLINE, async || {
        jetstream.get_stream("OUTBOX_DLQ").await.map(drop)
    })
    .await;
    consumer.stop().await;
    shop
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_read_and_replayed_as_it_always_was() {
    let shop = shop_with_a_dead_letter_stream(NatsServer::start().await).await;
    let jetstream = shop.nats.nats().jetstream().await;
    // The message itself, without what means something to JetStream.
    let message = || MESSAGE.iter().skip(1);
    let letter = headers(message().chain(&IDENTITY).chain(&HISTORY));
    let stored = jetstream
        .publish_with_headers(LETTER_SUBJECT, letter, PAYLOAD.into())
        .await;
    let number = stored.unwrap().await.unwrap().sequence;

    let letters = shop.bus.dead_letters(shop.broker.clone());
    let listed = letters.list(&DeadLetterFilter::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    let letter = &listed[0];
    let origin = letter.origin.as_ref().unwrap();
    assert_eq!(letter.consumer.as_deref(), Some("shipping"));
    assert_eq!(letter.message_id, Some(Uuid::parse_str(ID).unwrap()));
    assert_eq!(letter.event_type.as_deref(), Some("shop.orders.placed"));
    assert_eq!(
        (letter.subject.as_str(), letter.key.as_deref()),
        ("shop.orders.placed", Some(KEY))
    );
    assert_eq!(
        (letter.reason.as_str(), letter.error.as_str()),
        ("out-of-attempts", "the carrier is closed")
    );
    assert_eq!(
        letter.first_error.as_deref(),
        Some("the carrier is on strike")
    );
    assert_eq!(
        (letter.attempts, letter.deliveries, letter.replays),
        (5, Some(6), 1)
    );
    assert_eq!(
        letter.first_failed_at.unwrap().unix_timestamp(),
        1_767_323_100
    );
    assert_eq!(letter.dead_at.unix_timestamp(), 1_767_323_160);
    assert_eq!((origin.stream.as_str(), origin.sequence), ("SHOP", 41));
    assert_eq!(
        origin.stored_at.unix_timestamp_nanos(),
        1_767_323_046_000_000_001
    );

    assert!(letters.replay(letter.id).await.unwrap());
    let stream = read_stream(&jetstream, "OUTBOX_DLQ").await;
    assert_eq!(stream.len(), 1);
    let subject = REPLAY_SUBJECT.strip_suffix('3').unwrap();
    assert_eq!(stream[0].subject, format!("{subject}{number}"));
    assert_eq!(
        found(&stream[0]),
        expected(message().chain(&IDENTITY).chain(&[("outbox-replays", "2")]))
    );
    assert_eq!(stream[0].payload, PAYLOAD);
    let consumer = shop.consumer(&Script::always_ship(), shipping());
    shop.await_effects([7]).await;
    consumer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_handled_and_given_up_as_it_always_was() {
    let shop = shop_with_a_dead_letter_stream(NatsServer::start().await).await;
    let jetstream = shop.nats.nats().jetstream().await;
    let message = || MESSAGE.iter().skip(1);
    let replay = headers(message().chain(&IDENTITY).chain(&[("outbox-replays", "1")]));
    let stored = jetstream
        .publish_with_headers(REPLAY_SUBJECT, replay, PAYLOAD.into())
        .await;
    stored.unwrap().await.unwrap();
    let script = Script::new(|_, _| Act::Reject);
    let consumer = shop.consumer(&script, shipping());
    shop.await_dead_letters(1).await;
    consumer.stop().await;
    let stream = read_stream(&jetstream, "OUTBOX_DLQ").await;
    let letter = stream.last().unwrap();
    assert_eq!(letter.subject, LETTER_SUBJECT);
    assert_eq!(letter.payload, PAYLOAD);
    let mut headers = found(letter);
    for time in ["outbox-first-failed-at", "outbox-dead-at"] {
        assert!(
            headers.remove(time).is_some_and(|time| time.ends_with('Z')),
            "{time}"
        );
    }
    let history = [
        ("outbox-reason", "rejected"),
        (
            "outbox-error",
            "the handler rejected the message: the carrier never goes there",
        ),
        ("outbox-attempts", "1"),
        ("outbox-deliveries", "1"),
        ("outbox-replays", "1"),
    ];
    assert_eq!(
        headers,
        expected(message().chain(&IDENTITY).chain(&history))
    );
}

/// Headers and body are apart in a letter that would be too large with its history.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_dead_letter_is_read_and_replayed_as_it_always_was() {
    let shop = shop_with_a_dead_letter_stream(NatsServer::start().await).await;
    let jetstream = shop.nats.nats().jetstream().await;
    let message = || MESSAGE.iter().skip(1);
    let body = jetstream
        .publish_with_headers(BODY_SUBJECT, headers(message()), PAYLOAD.into())
        .await;
    let body = body.unwrap().await.unwrap().sequence.to_string();
    let body = [("outbox-body", body.as_str())];
    let letter = headers(IDENTITY.iter().chain(&HISTORY).chain(&body));
    let stored = jetstream
        .publish_with_headers(LETTER_SUBJECT, letter, "".into())
        .await;
    let number = stored.unwrap().await.unwrap().sequence;

    let listed = shop.dead_letters().await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].size, PAYLOAD.len());
    assert_eq!(listed[0].key.as_deref(), Some(KEY));
    let letters = shop.bus.dead_letters(shop.broker.clone());
    assert!(letters.replay(listed[0].id).await.unwrap());
    let stream = read_stream(&jetstream, "OUTBOX_DLQ").await;
    assert_eq!(stream.len(), 2, "the body and the replay");
    let subject = REPLAY_SUBJECT.strip_suffix('3').unwrap();
    assert_eq!(stream[1].subject, format!("{subject}{number}"));
    let replays = [("outbox-replays", "2")];
    let replay = IDENTITY.iter().chain(&replays).chain(&body);
    assert_eq!(found(&stream[1]), expected(replay));
    assert_eq!(stream[1].payload, "");

    let consumer = shop.consumer(&Script::always_ship(), shipping());
    shop.await_effects([7]).await;
    eventually("nothing is left of the letter", DEADLINE, async || {
        read_stream(&jetstream, "OUTBOX_DLQ").await.is_empty()
    })
    .await;
    consumer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_dead_letter_is_written_as_it_always_was() {
    const LIMIT: usize = 8 * 1024;
    let nats = NatsServer::start_with(NatsConfig::default().max_payload(LIMIT)).await;
    let shop = shop_with_a_dead_letter_stream(nats).await;
    let jetstream = shop.nats.nats().jetstream().await;
    let message = || MESSAGE.iter().skip(1);
    let replays = [("outbox-replays", "1")];
    let replay = || message().chain(&IDENTITY).chain(&replays);
    // The replay fits, and the letter does not.
    let taken: usize = replay()
        .map(|(name, value)| name.len() + value.len() + 4)
        .sum();
    let payload = format!("{PAYLOAD:<width$}", width = LIMIT - taken - 50);
    let stored = jetstream
        .publish_with_headers(REPLAY_SUBJECT, headers(replay()), payload.clone().into())
        .await;
    stored.unwrap().await.unwrap();
    let consumer = shop.consumer(&Script::new(|_, _| Act::Reject), shipping());
    shop.await_dead_letters(1).await;
    // The replay goes last.
    let [body, letter] = eventually("the letter alone, in two messages", DEADLINE, async || {
        let stream = read_stream(&jetstream, "OUTBOX_DLQ").await;
        <[_; 2]>::try_from(stream).map_err(|stream| format!("{stream:?}"))
    })
    .await;
    consumer.stop().await;
    assert_eq!(body.subject, BODY_SUBJECT);
    assert_eq!(found(&body), expected(message()));
    assert_eq!(body.payload, payload);
    assert_eq!(letter.subject, LETTER_SUBJECT);
    assert_eq!(letter.payload, "");
    let mut headers = found(&letter);
    headers.retain(|name, _| !HISTORY.iter().any(|(history, _)| name == history));
    let number = body.sequence.to_string();
    let pointer = [("outbox-body", number.as_str())];
    assert_eq!(headers, expected(IDENTITY.iter().chain(&pointer)));
}
