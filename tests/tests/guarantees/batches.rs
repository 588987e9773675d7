//! R4 and R6 for handlers that take several events at once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use outbox_core::{
    Bus, Consumer, Context, Envelope, HandlerError, MemoryBroker, Relay, State, handler,
};
use outbox_seaorm::SeaOrm;
use outbox_tests::{TestDatabase, eventually, on_every_database};
use sea_orm::{ConnectionTrait, DatabaseTransaction, TransactionTrait};
use tokio_util::sync::CancellationToken;

use crate::shop::{Act, DEADLINE, OrderPlaced, OrderShipped, Running, Script, Shop, numbers};

const STOP: Duration = Duration::from_secs(20);

/// A script, and which orders the handler was given together.
#[derive(Clone)]
struct Desk {
    script: Script,
    batches: Arc<Mutex<Vec<Vec<i64>>>>,
}

impl Desk {
    fn new(script: Script) -> Self {
        Self {
            script,
            batches: Arc::default(),
        }
    }

    fn batches(&self) -> Vec<Vec<i64>> {
        self.batches.lock().unwrap().clone()
    }
}

/// Ships orders together; what the script says of any is done to all.
#[handler(consumer = "shipping", backoff = fixed("50ms"), batch = 50, linger = "200ms")]
async fn ship_together(
    orders: Vec<Envelope<OrderPlaced>>,
    tx: &DatabaseTransaction,
    desk: State<Desk>,
    cx: Context,
) -> Result<(), HandlerError> {
    let numbers: Vec<i64> = orders.iter().map(|order| order.payload.number).collect();
    desk.batches.lock().unwrap().push(numbers.clone());
    let acts: Vec<Act> = numbers
        .iter()
        .map(|number| desk.script.start(*number))
        .collect();
    for order in &orders {
        let number = order.payload.number;
        let insert = format!("INSERT INTO effects (number) VALUES ({number})");
        tx.execute_unprepared(&insert).await?;
        cx.of(order).publish(&OrderShipped { number })?;
    }
    for act in acts {
        match act {
            Act::Fail => return Err(HandlerError::retry("the carrier is closed")),
            Act::Reject => return Err(HandlerError::reject("the carrier never goes there")),
            Act::Panic => panic!("the carrier has lost its head"),
            Act::Hang => std::future::pending::<()>().await,
            Act::Take(time) => tokio::time::sleep(time).await,
            Act::CommitItself => {
                tx.execute_unprepared("COMMIT").await?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn shipping_together() -> Consumer<SeaOrm, Desk> {
    Consumer::of(ship_together {})
}

fn consume(shop: &Shop, desk: &Desk, consumer: Consumer<SeaOrm, Desk>) -> Running {
    shop.consumer_with(desk, consumer, STOP)
}

/// A shop with so many orders in the stream.
async fn with_orders(db: TestDatabase, count: i64) -> (Shop, Running) {
    let shop = Shop::open(db).await;
    let relay = shop.relay();
    place(&shop, 1..=count).await;
    (shop, relay)
}

/// Places orders in one transaction and waits until they are in the stream.
async fn place(shop: &Shop, orders: std::ops::RangeInclusive<i64>) {
    let tx = shop.db.connection.begin().await.unwrap();
    for number in orders.clone() {
        Shop::write_order(&shop.bus, &tx, number, None)
            .await
            .unwrap();
    }
    tx.commit().await.unwrap();
    shop.await_published(1..=*orders.end()).await;
}

on_every_database! {
    /// Many messages share a transaction; each has one effect, one inbox row, and is the cause of what
    /// was published for it.
    async fn a_batch_shares_a_transaction(db: TestDatabase) {
        let (shop, relay) = with_orders(db, 230).await;
        let desk = Desk::new(Script::always_ship());
        let consumer = consume(&shop, &desk, shipping_together());
        shop.await_effects(1..=230).await;
        shop.await_empty("outbox").await;
        consumer.stop().await;
        relay.stop().await;
        assert_eq!(shop.count("inbox").await, 230);
        let batches = desk.batches();
        assert!(batches.iter().all(|batch| batch.len() <= 50 && batch.is_sorted()), "{batches:?}");
        assert!(batches.len() < 20, "they are together: {batches:?}");
        assert!((1..=230).all(|number| desk.script.starts(number) == 1));
        let stream = shop.stream().await;
        let header = |message: &outbox_tests::StoredMessage, name| message.header(name).unwrap().to_owned();
        let orders: BTreeMap<i64, String> = stream
            .iter()
            .filter(|message| message.subject == "shop.orders.placed")
            .map(|message| {
                let order: OrderPlaced = serde_json::from_slice(&message.payload).unwrap();
                (order.number, header(message, "ce-id"))
            })
            .collect();
        let mut shipped = 0;
        for message in stream.iter().filter(|message| message.subject == "shop.orders.shipped") {
            let shipment: OrderShipped = serde_json::from_slice(&message.payload).unwrap();
            let order = &orders[&shipment.number];
            assert_eq!((&header(message, "ce-causationid"), &header(message, "ce-correlationid")), (order, order));
            shipped += 1;
        }
        assert_eq!(shipped, 230);
    }

    /// R6: a message that fails, panics or is rejected is found; only it spends attempts, and only it
    /// becomes a dead letter.
    async fn only_the_message_that_fails_is_given_up(db: TestDatabase) {
        let (shop, relay) = with_orders(db, 60).await;
        let desk = Desk::new(Script::new(|number, _| match number {
            7 => Act::Fail,
            23 => Act::Reject,
            24 => Act::Panic,
            _ => Act::Ship,
        }));
        let consumer = consume(&shop, &desk, shipping_together().max_attempts(3));
        let bad = [7, 23, 24];
        shop.await_effects((1..=60).filter(|number| !bad.contains(number))).await;
        let dead = shop.await_dead_letters(3).await;
        let mut given_up: Vec<_> =
            dead.iter().map(|letter| (letter.reason.as_str(), letter.attempts)).collect();
        given_up.sort_unstable();
        assert_eq!(given_up, [("out-of-attempts", 3), ("out-of-attempts", 3), ("rejected", 1)]);
        shop.await_empty("outbox").await;
        consumer.stop().await;
        relay.stop().await;
        let shipped = shop.stream().await.iter().filter(|message| message.subject == "shop.orders.shipped").count();
        assert_eq!(shipped, 57, "what a batch had published that failed is forgotten");
        assert_eq!(shop.count("inbox").await, 57);
    }

    /// A message that hangs holds up its batch for one time-out, and then only itself.
    async fn a_message_that_hangs_is_given_up_alone(db: TestDatabase) {
        let (shop, relay) = with_orders(db, 40).await;
        let desk = Desk::new(Script::new(|number, _| if number == 5 { Act::Hang } else { Act::Ship }));
        let consumer = shipping_together().timeout(Duration::from_secs(1)).max_attempts(2);
        let consumer = consume(&shop, &desk, consumer);
        shop.await_effects((1..=40).filter(|number| *number != 5)).await;
        let dead = shop.await_dead_letters(1).await;
        assert_eq!((dead[0].reason.as_str(), dead[0].attempts), ("out-of-attempts", 2));
        consumer.stop().await;
        relay.stop().await;
        assert_eq!(desk.script.starts(5), 3, "once with the others, twice alone");
    }

    /// R4: a new durable delivers all again. What was handled is left out of its batches.
    async fn duplicates_are_left_out_of_a_batch(db: TestDatabase) {
        let (shop, relay) = with_orders(db, 30).await;
        let desk = Desk::new(Script::always_ship());
        let consumer = consume(&shop, &desk, shipping_together());
        shop.await_effects(1..=30).await;
        consumer.stop().await;
        place(&shop, 31..=45).await;
        let jetstream = shop.nats.nats().jetstream().await;
        jetstream.get_stream("SHOP").await.unwrap().delete_consumer("shipping").await.unwrap();
        let before = desk.batches().len();
        let consumer = consume(&shop, &desk, shipping_together().batch(200));
        shop.await_effects(1..=45).await;
        let info = async || jetstream.get_stream("SHOP").await.unwrap().consumer_info("shipping").await.unwrap();
        eventually("all is settled", DEADLINE, async || {
            let info = info().await;
            info.num_pending == 0 && info.num_ack_pending == 0
        })
        .await;
        consumer.stop().await;
        relay.stop().await;
        assert_eq!(desk.batches()[before..].concat(), (31..=45).collect::<Vec<_>>());
        assert_eq!(shop.count("inbox").await, 45);
    }

    /// A full batch waits for nobody, and one that is not full no longer than it is told to.
    async fn a_batch_waits_for_its_size_or_its_time(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let desk = Desk::new(Script::always_ship());
        // Longer than the deadline of what is awaited below.
        let patient = shipping_together().batch(3).ack_wait(4 * 2 * DEADLINE).linger(2 * DEADLINE);
        let consumer = consume(&shop, &desk, patient);
        shop.order(1).await;
        let jetstream = shop.nats.nats().jetstream().await;
        eventually("the first is collected before the others are there", DEADLINE, async || {
            let info = jetstream.get_stream("SHOP").await.ok()?.consumer_info("shipping").await.ok()?;
            (info.num_ack_pending == 1).then_some(())
        })
        .await;
        for number in 2..=3 {
            shop.order(number).await;
        }
        shop.await_effects(1..=3).await;
        consumer.stop().await;
        assert_eq!(desk.batches(), [[1, 2, 3]]);
        let consumer = consume(&shop, &desk, shipping_together().batch(1000).linger(Duration::from_millis(100)));
        shop.order(4).await;
        shop.await_effects(1..=4).await;
        consumer.stop().await;
        relay.stop().await;
    }

    /// R9: what was collected for a batch that is not full is handed back by a stop, at once and
    /// without a start.
    async fn a_stop_hands_back_what_was_collected(db: TestDatabase) {
        let (shop, relay) = with_orders(db, 10).await;
        let desk = Desk::new(Script::always_ship());
        let patient = || shipping_together().ack_wait(4 * 2 * DEADLINE).linger(2 * DEADLINE);
        let consumer = consume(&shop, &desk, patient());
        let jetstream = shop.nats.nats().jetstream().await;
        eventually("they are collected", DEADLINE, async || {
            let info = jetstream.get_stream("SHOP").await.ok()?.consumer_info("shipping").await.ok()?;
            (info.num_ack_pending == 10).then_some(())
        })
        .await;
        consumer.stop().await;
        assert!(desk.batches().is_empty());
        let consumer = consume(&shop, &desk, shipping_together());
        shop.await_effects(1..=10).await;
        consumer.stop().await;
        relay.stop().await;
        assert!((1..=10).all(|number| desk.script.starts(number) == 1));
        assert!(shop.dead_letters().await.is_empty());
    }

    /// A handler that commits by itself has done nobody knows what: all its messages become dead
    /// letters. (SQLite and MariaDB end a transaction as silently as PostgreSQL.)
    async fn a_batch_that_ends_its_transaction_is_dead_lettered(db: TestDatabase) {
        let (shop, relay) = with_orders(db, 6).await;
        let desk = Desk::new(Script::new(|number, _| if number == 3 { Act::CommitItself } else { Act::Ship }));
        let consumer = consume(&shop, &desk, shipping_together().concurrency(1));
        let dead = shop.await_dead_letters(6).await;
        assert!(dead.iter().all(|letter| letter.reason == "transaction-ended"), "{dead:?}");
        consumer.stop().await;
        relay.stop().await;
        assert_eq!(shop.effects().await, (1..=6).collect::<Vec<_>>());
        let shipped = shop.stream().await.iter().filter(|message| message.subject == "shop.orders.shipped").count();
        assert_eq!(shipped, 0);
    }

    /// The same handlers over the broker in the process.
    async fn batches_come_from_any_broker(db: TestDatabase) {
        let store = SeaOrm::new(db.connection.clone());
        store.migrate().await.unwrap();
        db.connection.execute_unprepared("CREATE TABLE effects (number BIGINT NOT NULL)").await.unwrap();
        db.connection.execute_unprepared("CREATE TABLE orders (number BIGINT NOT NULL)").await.unwrap();
        let (bus, broker) = (Bus::new(store), MemoryBroker::new());
        let tx = db.connection.begin().await.unwrap();
        for number in 1..=120 {
            Shop::write_order(&bus, &tx, number, None).await.unwrap();
        }
        tx.commit().await.unwrap();
        assert_eq!(Relay::new(bus.clone(), broker.clone()).dispatch_batch().await.unwrap().published, 120);
        let desk = Desk::new(Script::always_ship());
        let stop = CancellationToken::new();
        let runtime = bus.runtime(broker).state(desk.clone()).consumer(shipping_together());
        let running = tokio::spawn(runtime.run(stop.clone()));
        eventually("all effects", DEADLINE, async || {
            numbers(&db.connection, "SELECT number FROM effects ORDER BY number").await == (1..=120).collect::<Vec<_>>()
        })
        .await;
        stop.cancel();
        running.await.unwrap().unwrap();
        assert!(desk.batches().iter().any(|batch| batch.len() > 1), "{:?}", desk.batches());
    }
}
