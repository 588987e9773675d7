//! What must be true of a history when all is quiet.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use serde::de::DeserializeOwned;

use super::{
    plan::{Plan, SLOT},
    shop::{GHOST, OrderPlaced, ReportMade, numbers},
};
use crate::{Nats, StoredMessage, TestDatabase, read_stream};

/// What a history was.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Orders that exist, each with one effect.
    pub orders: usize,
    /// Messages in the stream of the shop, repetitions included.
    pub messages: usize,
    /// Messages whose id had been in the stream before.
    pub repeated: usize,
    /// What is wrong; nothing, if every promise was kept.
    pub violations: Vec<String>,
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            orders,
            messages,
            repeated,
            violations,
        } = self;
        write!(
            f,
            "{orders} orders, {messages} messages ({repeated} repeated), {} violations",
            violations.len()
        )?;
        for violation in violations {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}

/// Looks at the rows and the streams of a history that has come to rest.
///
/// # Panics
///
/// When the servers do not answer.
pub async fn check(db: &TestDatabase, nats: &Nats, plan: Plan, slots: i64) -> Findings {
    let mut violations = Vec::new();
    let column = async |table: &str| {
        let sql = format!("SELECT number FROM {table} ORDER BY number");
        numbers(&db.connection, &sql)
            .await
            .expect("read the shop's tables")
    };
    let orders = column("orders").await;
    let mut expected = Vec::new();
    for slot in 0..slots {
        let of_slot = orders.iter().filter(|number| **number / SLOT == slot);
        if let Some(&last) = of_slot.max() {
            expected.extend(plan.committed(slot, last).map(|order| order.number));
        }
    }
    compare("orders", &expected, &orders, &mut violations);
    compare(
        "effects",
        &expected,
        &column("effects").await,
        &mut violations,
    );
    for table in ["bills", "bookings"] {
        compare(table, &expected, &column(table).await, &mut violations);
    }
    for table in ["outbox", "outbox_held"] {
        let sql = format!("SELECT COUNT(*) AS number FROM {table}");
        let left = numbers(&db.connection, &sql).await.expect("count rows");
        if left != [0] {
            violations.push(format!("{table} has {left:?} rows left"));
        }
    }
    let stream = read_stream(&nats.jetstream().await, "SHOP").await;
    let repeated = stream.len() - ids(&stream);
    check_order(plan, &stream, &mut violations);
    check_reports(db, nats, &mut violations).await;
    Findings {
        orders: orders.len(),
        messages: stream.len(),
        repeated,
        violations,
    }
}

/// Each number once, and no other.
fn compare(what: &str, expected: &[i64], found: &[i64], violations: &mut Vec<String>) {
    let mut counts: BTreeMap<i64, i32> = BTreeMap::new();
    for number in expected {
        *counts.entry(*number).or_default() += 1;
    }
    for number in found {
        *counts.entry(*number).or_default() -= 1;
    }
    for (number, balance) in counts {
        if balance > 0 {
            violations.push(format!("{what}: {number} is missing"));
        } else if balance < 0 {
            violations.push(format!(
                "{what}: {number} is there {} times too often",
                -balance
            ));
        }
    }
}

fn ids(stream: &[StoredMessage]) -> usize {
    let ids: std::collections::HashSet<_> = stream
        .iter()
        .filter_map(|message| message.header("ce-id"))
        .collect();
    ids.len()
}

fn parsed<E: DeserializeOwned>(message: &StoredMessage) -> Option<E> {
    serde_json::from_slice(&message.payload).ok()
}

/// First appearances of one key stand in the order in which its slot placed them, and nothing is there
/// that was undone.
fn check_order(plan: Plan, stream: &[StoredMessage], violations: &mut Vec<String>) {
    let mut last: HashMap<String, i64> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    for message in stream {
        if message.subject != "shop.orders.placed" {
            continue;
        }
        let Some(order) = parsed::<OrderPlaced>(message) else {
            violations.push(format!("a message that nobody wrote: {}", message.text()));
            continue;
        };
        if order.number == GHOST || !plan.of(order.number).commits() {
            violations.push(format!("an event of an undone order: {order:?}"));
        }
        if !seen.insert(order.number) {
            continue;
        }
        let Some(customer) = order.customer else {
            continue;
        };
        let before = last.insert(customer.clone(), order.number);
        if before.is_some_and(|before| before > order.number) {
            violations.push(format!(
                "{customer}: {} came after {before:?}",
                order.number
            ));
        }
    }
}

/// The reports that were written are in their stream, in order.
async fn check_reports(db: &TestDatabase, nats: &Nats, violations: &mut Vec<String>) {
    let written = numbers(&db.connection, "SELECT number FROM reports ORDER BY number");
    let written = written.await.expect("read the reports");
    if written.is_empty() {
        return;
    }
    let mut published = Vec::new();
    for message in read_stream(&nats.jetstream().await, "REPORTS").await {
        let report = parsed::<ReportMade>(&message).map(|report| report.number);
        if let Some(number) = report.filter(|number| !published.contains(number)) {
            published.push(number);
        }
    }
    if published != written {
        violations.push(format!(
            "reports {written:?} were published as {published:?}"
        ));
    }
}
