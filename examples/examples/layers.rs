//! Tower layers around a handler: which sees what, and in which order.
//!
//! ```text
//! cargo run --example layers
//! ```
//!
//! Outer layers (`Consumer::layer`) wrap the inbox. They see every delivery, duplicates included,
//! and may try it again, since each try runs in a transaction of its own. Inner layers
//! (`Consumer::layer_inside`) wrap the handler. They see its transaction, and only messages that
//! have not been handled before. A layer that is added later wraps those added before.
//!
//! Needs nothing but Rust: the database is a SQLite file, the broker lives in the process.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program has no other crate to be reached from"
)]

use std::{
    fmt::Display,
    future::{Ready, ready},
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use outbox_core::{
    Backoff, Bus, Consumer, Context, Delivery, DeliveryError, DeliveryErrorKind, Finished,
    HandlerError, HandlerErrorKind, IntegrationEvent, MemoryBroker, Outcome, RelayOptions, State,
    Transacted, error::BoxError, handler,
};
use outbox_seaorm::SeaOrm;
use sea_orm::{ActiveValue::Set, Database, PaginatorTrait, TransactionTrait, entity::prelude::*};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tower::{Layer, Service, retry, timeout::TimeoutLayer};

// ----- a layer that fits both sides: it tells when a request goes in and how it comes out -----

/// Tells a story, indented by its depth.
#[derive(Clone, Copy)]
struct Told {
    name: &'static str,
    depth: usize,
}

impl<S> Layer<S> for Told {
    type Service = ToldService<S>;

    fn layer(&self, inner: S) -> ToldService<S> {
        ToldService { told: *self, inner }
    }
}

#[derive(Clone)]
struct ToldService<S> {
    told: Told,
    inner: S,
}

impl<S, Request> Service<Request> for ToldService<S>
where
    S: Service<Request, Response: Ending, Error: Display, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    // Boxed for brevity; a layer for others would name its future.
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let Told { name, depth } = self.told;
        tell(depth, &format!("{name}: in"));
        let began = Instant::now();
        let work = self.inner.call(request);
        Box::pin(async move {
            let result = work.await;
            let ending = match &result {
                Ok(response) => response.ending().to_owned(),
                Err(error) => format!("error: {error}"),
            };
            tell(depth, &format!("{name}: out, {ending}{}", slow(began)));
            result
        })
    }
}

/// How a response is told.
trait Ending {
    fn ending(&self) -> &'static str;
}

/// What comes out of the inbox.
impl Ending for Outcome {
    fn ending(&self) -> &'static str {
        if self.is_duplicate() {
            "a duplicate: nothing was done"
        } else {
            "committed"
        }
    }
}

/// What comes out of the handler: also its error is a response, since the transaction comes with it.
impl Ending for Finished<SeaOrm> {
    fn ending(&self) -> &'static str {
        if self.succeeded() {
            "ready to commit"
        } else {
            "to be rolled back"
        }
    }
}

// ----- an inner layer that works in the handler's transaction -----

mod audit {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "audit")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub message_id: Uuid,
        pub consumer: String,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// Writes down what is handled. The row commits with the handler's work, or not at all.
#[derive(Clone, Copy)]
struct Audited;

impl<S> Layer<S> for Audited {
    type Service = AuditedService<S>;

    fn layer(&self, inner: S) -> AuditedService<S> {
        AuditedService { inner }
    }
}

#[derive(Clone)]
struct AuditedService<S> {
    inner: S,
}

impl<S> Service<Transacted<SeaOrm>> for AuditedService<S>
where
    S: Service<Transacted<SeaOrm>, Response = Finished<SeaOrm>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
{
    type Response = Finished<SeaOrm>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Finished<SeaOrm>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, work: Transacted<SeaOrm>) -> Self::Future {
        // The instance that is ready goes; a clone, which may not be, stays.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let row = audit::ActiveModel {
                message_id: Set(work.delivery().envelope().id),
                consumer: Set(work.delivery().consumer().to_owned()),
                ..Default::default()
            };
            row.insert(work.tx()).await?;
            tell(3, "audit: a row in the handler's transaction");
            inner.call(work).await
        })
    }
}

// ----- an outer layer that tries again at once -----

/// Tries once more if the handler asks for a retry. What it does not take on goes to the runtime,
/// which counts it, waits for the consumer's backoff, and has the message delivered again.
#[derive(Clone)]
struct OnceMore {
    tried: bool,
}

impl retry::Policy<Delivery, Outcome, BoxError> for OnceMore {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Delivery,
        result: &mut Result<Outcome, BoxError>,
    ) -> Option<Ready<()>> {
        let error = result.as_ref().err()?.downcast_ref::<DeliveryError>()?;
        let asked = error.kind() == DeliveryErrorKind::Handler(HandlerErrorKind::Retry);
        if !asked || mem::replace(&mut self.tried, true) {
            return None;
        }
        tell(1, "retry: once more, in a new transaction");
        Some(ready(()))
    }

    fn clone_request(&mut self, delivery: &Delivery) -> Option<Delivery> {
        Some(delivery.clone())
    }
}

// ----- the handler -----

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", key = item)]
pub struct OrderPlaced {
    pub item: String,
}

#[handler(consumer = "packing", concurrency = 1)]
async fn pack(event: OrderPlaced, calls: State<Calls>, cx: Context) -> Result<(), HandlerError> {
    let first = calls.next() == 1;
    tell(
        4,
        &format!("handler: packs a {} (attempt {})", event.item, cx.attempt()),
    );
    match event.item.as_str() {
        "vase" if first => Err(HandlerError::retry("it slipped out of the hands")),
        "piano" if first => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// How often the handler was called in the current chapter.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicU32>);

impl Calls {
    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn start_again(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("packing.db");
    let db = Database::connect(format!("sqlite://{}?mode=rwc", file.display())).await?;
    db.get_schema_builder()
        .register(audit::Entity)
        .apply(&db)
        .await?;
    let store = SeaOrm::new(db.clone());
    store.migrate().await?;
    let bus = Bus::new(store);
    let broker = MemoryBroker::new();
    let calls = Calls::default();

    let consumer = Consumer::of(pack {})
        .backoff(Backoff::fixed(Duration::from_millis(100)))
        // Around the handler, from it outwards.
        .layer_inside(TimeoutLayer::new(Duration::from_millis(200)))
        .layer_inside(Audited)
        .layer_inside(Told {
            name: "inner",
            depth: 2,
        })
        // Around the inbox, from it outwards.
        .layer(retry::RetryLayer::new(OnceMore { tried: false }))
        .layer(Told {
            name: "outer",
            depth: 0,
        });
    let shutdown = CancellationToken::new();
    let runtime = bus
        .runtime(broker.clone())
        .state(calls.clone())
        .relay(RelayOptions::default())
        .consumer(consumer);
    let running = tokio::spawn(runtime.run(shutdown.clone()));
    println!("From the outside in: outer, retry, [inbox], inner, audit, time-out, handler.");

    let chapter = async |title: &str, item: &str, handled: u64| -> Result<Uuid, BoxError> {
        println!("\n{title}");
        calls.start_again();
        let id = order(&bus, &db, item).await?;
        until(async || audits(&db).await == handled).await;
        Ok(id)
    };

    let kettle = chapter(
        "1. A kettle: through all layers to the handler, and back.",
        "kettle",
        1,
    )
    .await?;

    println!(
        "\n2. The same message again: the inbox turns it back, and the inner layers never see it."
    );
    broker.duplicate(kettle);
    tokio::time::sleep(Duration::from_millis(200)).await;

    chapter(
        "3. A vase, which breaks: the retry layer takes a new transaction; the first audit row is gone.",
        "vase",
        2,
    )
    .await?;

    chapter(
        "4. A piano, which takes too long: the time-out drops the handler and rolls back, and the \
         runtime\n   has the message delivered again.",
        "piano",
        3,
    )
    .await?;

    tokio::time::sleep(Duration::from_millis(50)).await;
    shutdown.cancel();
    running.await??;
    println!(
        "\nThe handler was called five times. Audit rows: {}, one for each message.",
        audits(&db).await
    );
    Ok(())
}

async fn order(bus: &Bus<SeaOrm>, db: &DatabaseConnection, item: &str) -> Result<Uuid, BoxError> {
    let tx = db.begin().await?;
    let item = item.to_owned();
    let id = bus.publish(&tx, &OrderPlaced { item }).await?;
    tx.commit().await?;
    Ok(id)
}

async fn audits(db: &DatabaseConnection) -> u64 {
    audit::Entity::find().count(db).await.unwrap_or_default()
}

async fn until(reached: impl AsyncFn() -> bool) {
    for _ in 0..500 {
        if reached().await {
            // The last lines of the story come a moment later.
            tokio::time::sleep(Duration::from_millis(50)).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("   (this takes too long; something is wrong)");
    std::process::exit(1);
}

fn tell(depth: usize, line: &str) {
    println!("   {:width$}{line}", "", width = depth * 2);
}

/// The time, where it matters.
fn slow(began: Instant) -> String {
    let took = began.elapsed();
    if took < Duration::from_millis(150) {
        return String::new();
    }
    format!(" (after {} ms)", took.as_millis() / 10 * 10)
}
