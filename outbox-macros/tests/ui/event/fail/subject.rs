use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
struct NoAttribute;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(version = 2)]
struct NoSubject;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event]
struct NoList;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event = "shop.orders"]
struct NotAList;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "")]
struct Empty;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop..placed")]
struct EmptyToken;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.*")]
struct Wildcard;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders placed")]
struct Blank;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.{region}.placed")]
struct Interpolated;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "$JS.API")]
struct OfNats;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.größe")]
struct NotAscii;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = concat!("a", "b"), version = 2)]
struct NotALiteral;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", type = "")]
struct EmptyType;

fn is_event<E: IntegrationEvent>() {}

// None of the mistakes above makes these wrong as well.
fn main() {
    is_event::<NoAttribute>();
    is_event::<NoList>();
    is_event::<Wildcard>();
    let _: [Option<EmptyTypeEnvelope>; 0] = [];
}
