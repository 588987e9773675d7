//! Layers of the tower crate around and inside the inbox.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use outbox_core::{BoxError, Delivery, DeliveryService};
use outbox_tests::{TestDatabase, eventually, on_every_database};
use tower::{
    Layer, Service, limit::ConcurrencyLimitLayer, load_shed::LoadShedLayer, retry::RetryLayer,
    timeout::TimeoutLayer,
};

use crate::shop::{Act, DEADLINE, Script, Shop, shipping};

/// Tries a delivery again at once, each time in a transaction of its own.
#[derive(Debug, Clone)]
struct Again(u32);

impl<R> tower::retry::Policy<Delivery, R, BoxError> for Again {
    type Future = std::future::Ready<()>;

    fn retry(
        &mut self,
        _: &mut Delivery,
        result: &mut Result<R, BoxError>,
    ) -> Option<Self::Future> {
        if result.is_ok() || self.0 == 0 {
            return None;
        }
        self.0 -= 1;
        Some(std::future::ready(()))
    }

    fn clone_request(&mut self, delivery: &Delivery) -> Option<Delivery> {
        Some(delivery.clone())
    }
}

/// Is not ready for a while, then fails once, then works.
#[derive(Debug, Clone, Default)]
struct SlowToStart(Arc<AtomicU32>);

impl Layer<DeliveryService> for SlowToStart {
    type Service = SlowToStartService;

    fn layer(&self, inner: DeliveryService) -> SlowToStartService {
        SlowToStartService {
            polls: Arc::clone(&self.0),
            inner,
        }
    }
}

#[derive(Clone)]
struct SlowToStartService {
    polls: Arc<AtomicU32>,
    inner: DeliveryService,
}

impl Service<Delivery> for SlowToStartService {
    type Response = outbox_core::Outcome;
    type Error = BoxError;
    type Future = <DeliveryService as Service<Delivery>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.polls.fetch_add(1, Ordering::Relaxed) {
            0..=20 => {
                let waker = cx.waker().clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    waker.wake();
                });
                Poll::Pending
            }
            21 => Poll::Ready(Err("still warming up".into())),
            _ => self.inner.poll_ready(cx),
        }
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        self.inner.call(delivery)
    }
}

on_every_database! {
    /// R4: a retry layer outside the inbox: one effect, one inbox row, one follow-up.
    async fn a_retry_layer_outside_the_inbox_gives_each_try_its_own_transaction(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|_, before| if before < 2 { Act::FailAfterTheEffect } else { Act::Ship });
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(1).layer(RetryLayer::new(Again(2))));
        shop.order(1).await;
        shop.await_effects([1]).await;
        eventually("the follow-up", DEADLINE, async || shop.stream().await.len() == 2).await;
        assert_eq!(script.starts(1), 3);
        assert_eq!(shop.count("inbox").await, 1);
        assert!(shop.dead_letters().await.is_empty());
        consumer.stop().await;
        relay.stop().await;
    }

    /// R8: time-outs inside the transaction lose no slot of a concurrency limit.
    async fn time_outs_inside_the_transaction_lose_no_permit(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|number, before| if number <= 10 && before == 0 { Act::Hang } else { Act::Ship });
        let relay = shop.relay();
        let consumer = shop.consumer(
            &script,
            shipping()
                .layer_inside(TimeoutLayer::new(Duration::from_millis(50)))
                .layer_inside(ConcurrencyLimitLayer::new(1)),
        );
        for number in 1..=20 {
            shop.order(number).await;
        }
        shop.await_effects(1..=20).await;
        consumer.stop().await;
        relay.stop().await;
    }

    /// R5: being turned away by an overloaded layer is no attempt; a layer that is slow to start or
    /// fails before it takes a message loses none.
    async fn a_layer_that_is_not_ready_spends_no_attempt(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|_, _| Act::Take(Duration::from_millis(20)));
        let relay = shop.relay();
        let consumer = shop.consumer(
            &script,
            shipping()
                .max_attempts(1)
                .layer(ConcurrencyLimitLayer::new(2))
                .layer(LoadShedLayer::new())
                .layer(SlowToStart::default()),
        );
        for number in 1..=10 {
            shop.order(number).await;
        }
        shop.await_effects(1..=10).await;
        assert!(shop.dead_letters().await.is_empty(), "{:?}", shop.dead_letters().await);
        consumer.stop().await;
        relay.stop().await;
    }
}
