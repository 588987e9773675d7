//! Work that goes on when nobody waits for it any more.

use std::{
    any::Any,
    fmt,
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{FutureExt, future::CatchUnwind};
use tokio::runtime::Handle;

/// Runs `work` in the caller's task, which is quicker than one of its own; if the caller is dropped
/// meanwhile, it goes on in a task of its own.
///
/// It ends with its runtime.
pub(crate) fn persistent<F>(work: F) -> Persistent<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    Persistent {
        work: Some(Box::pin(AssertUnwindSafe(work).catch_unwind())),
        runtime: None,
    }
}

pub(crate) struct Persistent<F: Future<Output: Send> + Send + 'static> {
    /// `None` when it has ended.
    work: Option<Pin<Box<CatchUnwind<AssertUnwindSafe<F>>>>>,
    /// Where it goes on; `None` before it has begun.
    runtime: Option<Handle>,
}

impl<F: Future<Output: Send> + Send + 'static> Future for Persistent<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.runtime.is_none() {
            self.runtime = Handle::try_current().ok();
        }
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let done = work.poll_unpin(cx);
        if done.is_ready() {
            self.work = None;
        }
        done.map_err(Panicked::from)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Persistent<F> {
    fn drop(&mut self) {
        if let (Some(work), Some(runtime)) = (self.work.take(), &self.runtime) {
            runtime.spawn(work);
        }
    }
}

/// The work panicked.
#[derive(Debug)]
pub(crate) struct Panicked(String);

impl From<Box<dyn Any + Send>> for Panicked {
    fn from(panic: Box<dyn Any + Send>) -> Self {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self(text.unwrap_or_else(|| "of unknown cause".to_owned()))
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the database driver panicked: {}", self.0)
    }
}

impl std::error::Error for Panicked {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn it_goes_on_when_its_caller_is_dropped() {
        let (go_on, may_go_on) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel::<()>();
        let mut work = Box::pin(persistent(async move {
            let _ = may_go_on.await;
            let _ = done.send(());
        }));
        assert!(work.as_mut().now_or_never().is_none());
        drop(work);
        go_on.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(10), is_done)
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn what_nobody_began_does_not_begin() {
        let (done, is_done) = oneshot::channel::<()>();
        drop(persistent(async move {
            let _ = done.send(());
        }));
        assert!(is_done.await.is_err());
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let error = persistent(async { panic!("too bad") }).await.unwrap_err();
        assert_eq!(error.to_string(), "the database driver panicked: too bad");
    }
}
