//! The shop: its tables, events and handlers, and placing an order.

use std::time::Duration;

use outbox_core::{
    Bus, Context, HandlerError, IntegrationEvent, Publish, failpoint::Failpoint, handler,
};
use outbox_seaorm::SeaOrm;
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, Statement,
    TransactionTrait,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::plan::{Handling, Planned, Publishing};

/// The names of all consumers.
pub(super) const CONSUMERS: [&str; 3] = ["shipping", "billing", "booking"];

/// An event that is never to be seen: what published it was undone.
pub(super) const GHOST: i64 = -1;

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", key = customer)]
pub(super) struct OrderPlaced {
    pub(super) number: i64,
    pub(super) customer: Option<String>,
    pub(super) handling: Handling,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.shipped")]
pub(super) struct OrderShipped {
    pub(super) number: i64,
}

/// The key of all reports.
pub(super) const SHELF: &str = "reports";

/// Too large for its stream at first.
#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "reports.made", key = shelf)]
pub(super) struct ReportMade {
    pub(super) number: i64,
    pub(super) shelf: String,
}

/// Creates the shop's own tables.
pub(super) async fn create_tables(db: &DatabaseConnection) -> Result<(), DbErr> {
    for table in [
        "orders (number BIGINT NOT NULL PRIMARY KEY)",
        "reports (number BIGINT NOT NULL PRIMARY KEY)",
        "effects (number BIGINT NOT NULL)",
        "bills (number BIGINT NOT NULL)",
        "bookings (number BIGINT NOT NULL)",
        "mended (number BIGINT NOT NULL)",
    ] {
        db.execute_unprepared(&format!("CREATE TABLE {table}"))
            .await?;
    }
    Ok(())
}

#[handler(
    consumer = "shipping",
    concurrency = 8,
    max_attempts = 5,
    timeout = "1s"
)]
pub(super) async fn ship(
    order: OrderPlaced,
    tx: &DatabaseTransaction,
    cx: Context,
) -> Result<(), HandlerError> {
    let first = cx.attempt() == 1;
    match order.handling {
        Handling::Fail(times) if cx.attempt() <= times => {
            return Err(HandlerError::retry("the carrier is closed"));
        }
        Handling::Reject if numbers(tx, "SELECT number FROM mended").await?.is_empty() => {
            return Err(HandlerError::reject("the carrier never goes there"));
        }
        Handling::Panic if first => panic!("the carrier has lost its head"),
        Handling::Hang if first => std::future::pending::<()>().await,
        Handling::TakeTime => tokio::time::sleep(Duration::from_millis(300)).await,
        Handling::KillTheConnection if cx.deliveries() == 1 => kill_connection(tx).await?,
        _ => {}
    }
    insert(tx, "effects", order.number).await?;
    cx.publish(&OrderShipped {
        number: order.number,
    })?;
    match order.handling {
        Handling::FailAfterTheEffect if first => Err(HandlerError::retry("no paper for the label")),
        Handling::SwallowAnError if first => {
            // On PostgreSQL the transaction is doomed from here on.
            let _ = tx.execute_unprepared("SELECT nothing FROM nowhere").await;
            Ok(())
        }
        _ => Ok(()),
    }
}

#[handler(
    consumer = "billing",
    concurrency = 8,
    max_attempts = 5,
    timeout = "2s"
)]
pub(super) async fn bill(
    shipped: OrderShipped,
    tx: &DatabaseTransaction,
) -> Result<(), HandlerError> {
    insert(tx, "bills", shipped.number).await?;
    Ok(())
}

/// The same in batches.
#[handler(
    consumer = "booking",
    batch = 10,
    linger = "20ms",
    max_attempts = 5,
    timeout = "2s"
)]
pub(super) async fn book(
    shipped: Vec<OrderShipped>,
    tx: &DatabaseTransaction,
) -> Result<(), HandlerError> {
    for order in shipped {
        insert(tx, "bookings", order.number).await?;
    }
    Ok(())
}

async fn kill_connection(tx: &DatabaseTransaction) -> Result<(), DbErr> {
    let kill = match tx.get_database_backend() {
        DbBackend::Postgres => "SELECT pg_terminate_backend(pg_backend_pid())",
        DbBackend::MySql => "KILL CONNECTION_ID()",
        _ => return Ok(()),
    };
    tx.execute_unprepared(kill).await.map(drop)
}

pub(super) async fn insert(
    db: &impl ConnectionTrait,
    table: &str,
    number: i64,
) -> Result<(), DbErr> {
    let sql = format!("INSERT INTO {table} (number) VALUES ({number})");
    db.execute_unprepared(&sql).await.map(drop)
}

/// The column `number` of a query.
pub(super) async fn numbers(db: &impl ConnectionTrait, sql: &str) -> Result<Vec<i64>, DbErr> {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let rows = db.query_all_raw(statement).await?;
    rows.iter().map(|row| row.try_get("", "number")).collect()
}

/// Places one order as planned. It may be there already, and the caller asks again after an error.
pub(super) async fn place(
    bus: &Bus<SeaOrm>,
    db: &DatabaseConnection,
    order: &Planned,
) -> Result<(), HandlerError> {
    let number = order.number;
    let event = OrderPlaced {
        number,
        customer: order.customer.clone(),
        handling: order.handling,
    };
    let ghost = OrderPlaced {
        number: GHOST,
        ..event.clone()
    };
    if matches!(
        order.publishing,
        Publishing::Unit | Publishing::UnitWithUndoneSavepoint
    ) {
        let unit = bus.begin().await?;
        insert(unit.tx(), "orders", number).await?;
        unit.publish(&event)?;
        if order.publishing == Publishing::UnitWithUndoneSavepoint {
            let undone = unit.nested(async {
                let savepoint = unit.tx().begin().await?;
                unit.publish(&ghost)?;
                savepoint.rollback().await?;
                Err::<(), HandlerError>(HandlerError::retry("undone"))
            });
            let _ = undone.await;
        }
        unit.commit().await?;
        return Ok(());
    }
    let tx = db.begin().await?;
    insert(&tx, "orders", number).await?;
    match order.publishing {
        Publishing::UndoneSavepoint => {
            let savepoint = tx.begin().await?;
            bus.publish(&savepoint, &ghost).await?;
            savepoint.rollback().await?;
            bus.publish(&tx, &event).await?;
        }
        Publishing::Twice => {
            let id = Uuid::now_v7();
            for _ in 0..2 {
                bus.publish_with(&tx, &event, Publish::new().id(id)).await?;
            }
        }
        Publishing::Scheduled => {
            let later = Publish::new().delay(Duration::from_millis(200));
            bus.publish_with(&tx, &event, later).await?;
        }
        Publishing::RolledBack => {
            bus.publish(&tx, &ghost).await?;
            return Ok(tx.rollback().await?);
        }
        Publishing::Dropped => {
            bus.publish(&tx, &ghost).await?;
            return Ok(());
        }
        _ => {
            bus.publish(&tx, &event).await?;
        }
    }
    tx.commit().await?;
    Failpoint::after(|| "the order's own commit".to_owned()).passed();
    bus.wake();
    Ok(())
}

/// Makes a report.
pub(super) async fn report(bus: &Bus<SeaOrm>, number: i64) -> Result<(), HandlerError> {
    let unit = bus.begin().await?;
    insert(unit.tx(), "reports", number).await?;
    unit.publish(&ReportMade {
        number,
        shelf: SHELF.to_owned(),
    })?;
    unit.commit().await?;
    Ok(())
}
