//! Waits for a condition: the only place where tests sleep.

use std::fmt::Display;
use std::panic::Location;
use std::time::Duration;

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// What one look at the awaited condition found: `bool`, `Option<T>` or `Result<T, E>`.
///
/// A `Result` says why the condition does not hold yet, so prefer it where the state is worth
/// reading in a failure.
pub trait Probe {
    /// What the condition yields once it holds.
    type Value;

    /// The value, or a description of the state that was seen instead.
    ///
    /// # Errors
    ///
    /// When the condition does not hold yet.
    fn settle(self) -> Result<Self::Value, String>;
}

impl Probe for bool {
    type Value = ();

    fn settle(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".to_owned())
    }
}

impl<T> Probe for Option<T> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.ok_or_else(|| "None".to_owned())
    }
}

impl<T, E: Display> Probe for Result<T, E> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// Looks at a condition again and again until it holds.
///
/// ```
/// # use std::time::Duration;
/// # use outbox_tests::eventually;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut looks = 0;
/// let seen = eventually("the third look", Duration::from_secs(5), async || {
///     looks += 1;
///     if looks >= 3 { Ok(looks) } else { Err(format!("look {looks}")) }
/// })
/// .await;
/// assert_eq!(seen, 3);
/// # });
/// ```
///
/// # Panics
///
/// When the condition does not hold within `deadline`; the message tells what was awaited and the
/// state seen last.
#[track_caller]
pub fn eventually<P: Probe>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> P,
) -> impl Future<Output = P::Value> {
    let caller = Location::caller();
    async move {
        let end = Instant::now() + deadline;
        let mut pause = FIRST_PAUSE;
        let mut last_seen = "nothing: the first look did not finish".to_owned();
        loop {
            match tokio::time::timeout_at(end, probe()).await {
                Ok(found) => match found.settle() {
                    Ok(value) => return value,
                    Err(state) => last_seen = state,
                },
                Err(_) => break,
            }
            if Instant::now() >= end {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        panic!("{what}: not within {deadline:?} ({caller}); last seen: {last_seen}");
    }
}
