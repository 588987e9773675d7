//! Who waits for which reply on one connection.
//!
//! All requests of a connection share one inbox subscription; the last token of the reply subject
//! says whose reply it is. An entry lives until its reply, its time-out, the end of the connection,
//! a refusal of its subject, or the drop of its [`Ticket`], whichever comes first.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_nats::Subject;
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::oneshot;

/// A reply, reduced to what is needed.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) payload: Bytes,
}

/// Why there is no reply.
#[derive(Debug, Clone)]
pub(crate) enum CallError {
    /// The connection is down, or went down while waiting.
    Disconnected,
    TimedOut,
    /// Nobody listens on the subject.
    NoResponders,
    /// The server refused the subject; its text.
    Denied(Arc<str>),
    /// The client refused to send it; why.
    Invalid(String),
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Set once nothing can be answered any more.
    closed: Option<CallError>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Counts the uses of this slot, so that a late reply never reaches a later call.
    round: u32,
    call: Option<Call>,
}

#[derive(Debug)]
struct Call {
    subject: Subject,
    deadline: Instant,
    sender: oneshot::Sender<Result<Reply, CallError>>,
}

impl Calls {
    /// Registers a call; returns the ticket to wait with and the token of the reply subject.
    pub(crate) fn register(
        self: &Arc<Self>,
        subject: Subject,
        timeout: Duration,
    ) -> Result<(Ticket, u64), CallError> {
        let mut slots = self.lock();
        if let Some(error) = &slots.closed {
            return Err(error.clone());
        }
        let (sender, receiver) = oneshot::channel();
        let index = slots.free.pop().unwrap_or_else(|| {
            slots.slots.push(Slot::default());
            slots.slots.len() - 1
        });
        let deadline = Instant::now() + timeout;
        let round = match slots.slots.get_mut(index) {
            Some(slot) => {
                slot.round = slot.round.wrapping_add(1);
                slot.call = Some(Call {
                    subject,
                    deadline,
                    sender,
                });
                slot.round
            }
            None => 0,
        };
        drop(slots);
        let ticket = Ticket {
            calls: self.clone(),
            index,
            round,
            waiting: Waiting::For(receiver),
        };
        Ok((ticket, token(index, round)))
    }

    /// Hands a reply to whoever waits for it.
    pub(crate) fn resolve(&self, token: &str, result: Result<Reply, CallError>) {
        let Some((index, round)) = parse(token) else {
            return;
        };
        if let Some(call) = self.take(index, round) {
            let _ = call.sender.send(result);
        }
    }

    /// Ends all calls to a subject that the server refused.
    pub(crate) fn deny(&self, subject: &str, text: &Arc<str>) {
        self.end(
            |call| call.subject.as_str() == subject,
            &CallError::Denied(text.clone()),
        );
    }

    /// Ends all calls whose time is over.
    pub(crate) fn expire(&self, now: Instant) {
        self.end(|call| call.deadline <= now, &CallError::TimedOut);
    }

    /// Ends all calls, and every later one at once.
    pub(crate) fn close(&self, error: &CallError) {
        self.lock().closed.get_or_insert(error.clone());
        self.end(|_| true, error);
    }

    fn end(&self, over: impl Fn(&Call) -> bool, error: &CallError) {
        let mut slots = self.lock();
        let Slots { slots, free, .. } = &mut *slots;
        for (index, slot) in slots.iter_mut().enumerate() {
            if slot.call.as_ref().is_some_and(&over)
                && let Some(call) = slot.call.take()
            {
                free.push(index);
                let _ = call.sender.send(Err(error.clone()));
            }
        }
    }

    fn take(&self, index: usize, round: u32) -> Option<Call> {
        let mut slots = self.lock();
        let slot = slots
            .slots
            .get_mut(index)
            .filter(|slot| slot.round == round)?;
        let call = slot.call.take()?;
        slots.free.push(index);
        Some(call)
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the reply of one call; dropping it forgets the call.
#[derive(Debug)]
pub(crate) struct Ticket {
    calls: Arc<Calls>,
    index: usize,
    round: u32,
    waiting: Waiting,
}

#[derive(Debug)]
enum Waiting {
    For(oneshot::Receiver<Result<Reply, CallError>>),
    /// It came before anybody asked.
    Early(Result<Reply, CallError>),
    Over,
}

impl Ticket {
    /// The reply. Not to be awaited again after it resolved.
    pub(crate) async fn reply(&mut self) -> Result<Reply, CallError> {
        let reply = match &mut self.waiting {
            Waiting::For(receiver) => receiver.await.unwrap_or(Err(CallError::Disconnected)),
            Waiting::Early(reply) => std::mem::replace(reply, Err(CallError::Disconnected)),
            Waiting::Over => Err(CallError::Disconnected),
        };
        self.waiting = Waiting::Over;
        reply
    }

    /// Waits until the reply is there, and leaves it there.
    pub(super) fn poll_early(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Waiting::For(receiver) = &mut self.waiting {
            let reply = ready!(receiver.poll_unpin(cx));
            self.waiting = Waiting::Early(reply.unwrap_or(Err(CallError::Disconnected)));
        }
        Poll::Ready(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if matches!(self.waiting, Waiting::For(_)) {
            drop(self.calls.take(self.index, self.round));
        }
    }
}

fn token(index: usize, round: u32) -> u64 {
    (u64::from(round) << 32) | (index as u64 & 0xffff_ffff)
}

fn parse(token: &str) -> Option<(usize, u32)> {
    let token = u64::from_str_radix(token, 16).ok()?;
    Some((
        usize::try_from(token & 0xffff_ffff).ok()?,
        u32::try_from(token >> 32).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Result<Reply, CallError> {
        Ok(Reply {
            payload: Bytes::new(),
        })
    }

    fn waiting(calls: &Calls) -> usize {
        calls
            .lock()
            .slots
            .iter()
            .filter(|slot| slot.call.is_some())
            .count()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_reply_reaches_its_call_once() {
        let calls = Arc::new(Calls::default());
        let (mut first, token) = calls.register("a".into(), LONG).unwrap();
        let token = format!("{token:x}");
        calls.resolve(&token, reply());
        assert!(first.reply().await.is_ok());
        let (mut second, _) = calls.register("a".into(), LONG).unwrap();
        // A late second reply to the first call, whose slot is used again.
        calls.resolve(&token, reply());
        assert!(
            tokio::time::timeout(Duration::from_millis(5), second.reply())
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn nothing_leaks() {
        let calls = Arc::new(Calls::default());
        let (dropped, _) = calls.register("a".into(), LONG).unwrap();
        drop(dropped);
        let (mut expired, _) = calls.register("b".into(), Duration::ZERO).unwrap();
        let (mut denied, _) = calls.register("c".into(), LONG).unwrap();
        let (mut closed, _) = calls.register("d".into(), LONG).unwrap();
        calls.expire(Instant::now());
        calls.deny("c", &"no".into());
        calls.close(&CallError::Disconnected);
        assert!(matches!(expired.reply().await, Err(CallError::TimedOut)));
        assert!(matches!(denied.reply().await, Err(CallError::Denied(_))));
        assert!(matches!(closed.reply().await, Err(CallError::Disconnected)));
        assert!(matches!(
            calls.register("e".into(), LONG),
            Err(CallError::Disconnected)
        ));
        assert_eq!(waiting(&calls), 0);
        let slots = calls.lock();
        assert_eq!(slots.slots.len(), slots.free.len());
    }
}
