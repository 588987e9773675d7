//! The API.

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
    routing::get,
};
use outbox_core::{Bus, Health, HealthReport, error::BoxError};
use outbox_examples::{
    program::Chain,
    shop::{
        NewOrder,
        orders::{OrderState, Totals, find_order, totals},
        place_order,
    },
};
use outbox_seaorm::SeaOrm;
use sea_orm::DatabaseConnection;
use serde_json::{Value, json};
use uuid::Uuid;

#[derive(Clone)]
struct App {
    db: DatabaseConnection,
    bus: Bus<SeaOrm>,
    health: Health,
}

pub(crate) fn router(db: DatabaseConnection, bus: Bus<SeaOrm>, health: Health) -> Router {
    Router::new()
        .route("/orders", get(show_totals).post(create_order))
        .route("/orders/{id}", get(show_order))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .with_state(App { db, bus, health })
}

async fn create_order(
    State(app): State<App>,
    Json(order): Json<NewOrder>,
) -> Result<Response, Failure> {
    let id = place_order(&app.bus, &app.db, order).await?;
    let place = [(LOCATION, format!("/orders/{id}"))];
    Ok((StatusCode::CREATED, place, Json(json!({ "id": id }))).into_response())
}

async fn show_order(
    State(app): State<App>,
    Path(id): Path<Uuid>,
) -> Result<Result<Json<OrderState>, StatusCode>, Failure> {
    let order = find_order(&app.db, id).await?;
    Ok(order.map(Json).ok_or(StatusCode::NOT_FOUND))
}

async fn show_totals(State(app): State<App>) -> Result<Json<Totals>, Failure> {
    Ok(Json(totals(&app.db).await?))
}

/// Whether the process should be left alone: if not, Kubernetes restarts it.
async fn live(State(app): State<App>) -> (StatusCode, Json<Value>) {
    let report = app.health.report();
    (status(report.live), Json(json!({ "live": report.live })))
}

/// Whether requests should be sent to it. A broker that is away does not make it unready: orders
/// are taken, and their events wait in the outbox.
async fn ready(State(app): State<App>) -> (StatusCode, Json<Value>) {
    let report = app.health.report();
    (status(report.ready), Json(summary(&report)))
}

fn summary(report: &HealthReport) -> Value {
    let relay = report.relay.as_ref();
    let consumers = report.consumers.iter().map(|consumer| {
        let pending = consumer.pending.unwrap_or_default();
        json!({
            "name": consumer.name,
            "state": format!("{:?}", consumer.state),
            "paused": consumer.paused,
            "waiting": pending.waiting,
            "unsettled": pending.unsettled,
        })
    });
    json!({
        "ready": report.ready,
        "problems": report.problems,
        "relay": relay.map(|relay| format!("{:?}", relay.state)),
        "outbox": report.backlog.as_ref().map(|backlog| backlog.waiting),
        "consumers": consumers.collect::<Vec<_>>(),
        "dead_letters": report.dead_letters,
    })
}

fn status(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// An answer to a request that failed: the cause goes to the log, not to the customer.
struct Failure(BoxError);

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        eprintln!("a request failed: {}", Chain(self.0.as_ref()));
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            Json(json!({ "error": "the order desk is in trouble" })),
        )
            .into_response()
    }
}
