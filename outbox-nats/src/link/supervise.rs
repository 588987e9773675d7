//! Keeps a link connected: one connection after the other.

use std::{sync::Arc, time::Duration};

use async_nats::{Event, Message, ServerError, StatusCode, Subscriber};
use futures_util::{FutureExt, StreamExt};
use outbox_core::broker::BrokerErrorKind;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};

use super::{
    State,
    calls::{CallError, Reply},
    dial::{Connected, DialError, Dialer},
    life::Life,
    violation,
};

/// How often time-outs are looked for.
const TICK: Duration = Duration::from_millis(250);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// A failure that goes on is logged again after this.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// Runs until the last [`Link`](super::Link) is gone.
pub(super) async fn supervise(mut dialer: Dialer, state: watch::Sender<State>) {
    let mut pause = FIRST_PAUSE;
    let mut logged: Option<(String, Instant)> = None;
    loop {
        let dialed = tokio::select! {
            biased;
            () = state.closed() => return,
            dialed = dialer.dial() => dialed,
        };
        match dialed {
            Ok(connected) => {
                let server = connected.life.client.server_info();
                tracing::info!(server = %server.server_name, version = %server.version, "connected to NATS");
                logged = None;
                let since = Instant::now();
                if serve(connected, &state).await {
                    return;
                }
                tracing::warn!(servers = %dialer.shown(), "the connection to NATS was lost");
                // A server that drops us at once is not to be asked again at once.
                pause = if since.elapsed() > LONGEST_PAUSE {
                    FIRST_PAUSE
                } else {
                    longer(pause)
                };
                state.send_replace(State::Connecting);
            }
            Err(error) => {
                log(&error, &mut logged);
                // A refusal does not pass by itself: ask slowly.
                let refused = error.kind == BrokerErrorKind::Configuration;
                pause = if refused {
                    pause.max(Duration::from_secs(1))
                } else {
                    pause
                };
                state.send_replace(State::Down(Arc::new(error)));
                pause = longer(pause);
            }
        }
        tokio::select! {
            biased;
            () = state.closed() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

fn log(error: &DialError, logged: &mut Option<(String, Instant)>) {
    if logged
        .as_ref()
        .is_none_or(|(text, at)| *text != error.text || at.elapsed() > LOG_EVERY)
    {
        tracing::warn!("{}", error.text);
        *logged = Some((error.text.clone(), Instant::now()));
    }
}

/// Serves one connection until its end; `true` if nobody needs the link any more.
async fn serve(connected: Connected, state: &watch::Sender<State>) -> bool {
    let Connected {
        life,
        mut replies,
        mut events,
    } = connected;
    let life = Arc::new(life);
    state.send_replace(State::Up(life.clone()));
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let closed = state.closed();
    tokio::pin!(closed);
    let over = loop {
        tokio::select! {
            biased;
            message = replies.next() => match message {
                Some(message) => {
                    answer(&life, &message);
                    answer_ready(&life, &mut replies);
                }
                None => break false,
            },
            Some(event) = events.recv() => if !note(&life, &event) {
                break false;
            },
            _ = tick.tick() => life.calls.expire(std::time::Instant::now()),
            () = &mut closed => break true,
        }
    };
    life.calls.close(&CallError::Disconnected);
    // Whoever still holds the client: its connection ends now, since it knows no other server.
    let _ = life.client.force_reconnect().now_or_never();
    over
}

fn answer(life: &Life, message: &Message) {
    let Some(token) = message.subject.strip_prefix(life.inbox.as_str()) else {
        return;
    };
    let reply = if message.status == Some(StatusCode::NO_RESPONDERS) {
        Err(CallError::NoResponders)
    } else {
        Ok(Reply {
            payload: message.payload.clone(),
        })
    };
    life.calls.resolve(token, reply);
}

/// Answers what has arrived besides, without a round through `select!` for each.
fn answer_ready(life: &Life, replies: &mut Subscriber) {
    for _ in 0..256 {
        match replies.next().now_or_never() {
            Some(Some(message)) => answer(life, &message),
            _ => return,
        }
    }
}

/// Takes note of an event; `false` if the connection is over.
fn note(life: &Life, event: &Event) -> bool {
    match event {
        Event::Disconnected | Event::Closed => return false,
        Event::ServerError(ServerError::Other(text)) => match violation::subject(text) {
            Some(subject) => {
                if life.refuse(subject, &Arc::from(text.as_str())) {
                    tracing::error!("NATS refused a subject: {text}");
                }
            }
            None => tracing::warn!("NATS reported an error: {text}"),
        },
        Event::ServerError(error) => tracing::warn!("NATS reported an error: {error}"),
        Event::SlowConsumer(_) => {
            tracing::warn!("a subscription to NATS is slow: messages were dropped")
        }
        Event::LameDuckMode => tracing::info!("the NATS server is about to shut down"),
        _ => {}
    }
    true
}
