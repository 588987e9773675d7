//! What every [`Broker`] must do; run by [`broker_conformance!`](crate::broker_conformance).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use outbox_core::Headers;
use outbox_core::broker::{
    Broker, ConsumerSpec, DeadLetter, DeadReason, Delivered, DeliveryHandle, Publisher, Receipt,
    StartAt, Subscription, WireMessage,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::unique;

/// How long the broker waits for a sign from the consumers of this suite.
pub const ACK_WAIT: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(10);
/// Long enough for something wrong to happen.
const MOMENT: Duration = Duration::from_millis(400);

/// A broker with a subject that nobody else uses, and an empty dead-letter queue.
#[derive(Debug, Clone)]
pub struct World<B> {
    /// The broker.
    pub broker: B,
    /// What subjects begin with that it carries, without a dot at its end.
    pub prefix: String,
}

type Deliveries<B> = Vec<Delivered<<<B as Broker>::Subscription as Subscription>::Handle>>;

impl<B: Broker> World<B> {
    fn subject(&self) -> String {
        format!("{}.orders.placed", self.prefix)
    }

    fn message(&self, text: &str) -> WireMessage {
        let mut headers = Headers::new();
        headers.append("ce-id", "1");
        headers.append("tenant", "acme 🦀");
        headers.append("twice", "a");
        headers.append("twice", "b");
        WireMessage {
            id: Some(Uuid::new_v4()),
            subject: self.subject(),
            headers,
            payload: text.to_owned().into(),
        }
    }

    fn spec(&self, name: &str) -> ConsumerSpec {
        ConsumerSpec {
            name: name.to_owned(),
            subjects: vec![self.subject()],
            ack_wait: ACK_WAIT,
            start: StartAt::Beginning,
        }
    }

    async fn subscribe(&self, name: &str) -> B::Subscription {
        self.broker
            .subscribe(&self.spec(name))
            .await
            .expect("subscribe")
    }

    async fn replays(&self, name: &str) -> B::Subscription {
        let spec = self.spec(name);
        self.broker
            .subscribe_replays(&spec)
            .await
            .expect("subscribe to replays")
    }

    async fn publish(&self, texts: &[&str]) -> Vec<Receipt> {
        let publisher = self.broker.publisher().await.expect("a publisher");
        let mut receipts = Vec::new();
        for text in texts {
            receipts.push(
                publisher
                    .publish(self.message(text))
                    .await
                    .expect("published"),
            );
        }
        receipts
    }

    /// A letter about a message that `consumer` gave up.
    async fn give_up(&self, consumer: &str, text: &str) -> DeadLetter {
        let mut subscription = self.subscribe(consumer).await;
        self.publish(&[text]).await;
        loop {
            let delivered = one(&mut subscription).await;
            let found = delivered.message.payload == text;
            let letter = letter(consumer, &delivered);
            if found {
                self.broker.dead_letter(&letter).await.expect("stored");
                delivered
                    .handle
                    .terminate("given up")
                    .await
                    .expect("terminated");
                return letter;
            }
            delivered.handle.ack().await.expect("acknowledged");
        }
    }

    async fn letters(&self, consumer: Option<&str>) -> Vec<(u64, DeadLetter)> {
        let letters = self.broker.dead_letters(consumer, 0, 100).await;
        letters.expect("dead letters")
    }
}

fn letter<H>(consumer: &str, delivered: &Delivered<H>) -> DeadLetter {
    let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_789).expect("a time");
    DeadLetter {
        consumer: consumer.to_owned(),
        origin: delivered.origin.clone(),
        message: delivered.message.clone(),
        reason: DeadReason::OutOfAttempts,
        error: "the card was declined".to_owned(),
        first_error: Some("the bank was away".to_owned()),
        attempts: 5,
        deliveries: delivered.deliveries,
        replays: delivered.replay.unwrap_or_default(),
        first_failed_at: Some(at),
        dead_at: at + Duration::from_secs(60),
    }
}

/// A letter with its headers in a known order, since brokers need not keep that of names.
fn sorted(mut letter: DeadLetter) -> DeadLetter {
    letter.message.headers = headers(&letter.message).into_iter().collect();
    letter
}

fn headers(message: &WireMessage) -> Vec<(String, String)> {
    let own = |name: &str| !name.to_ascii_lowercase().starts_with("nats-");
    let headers = message.headers.iter().filter(|(name, _)| own(name));
    let mut headers: Vec<_> = headers.map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    headers.sort();
    headers
}

async fn some<S: Subscription>(subscription: &mut S, demand: usize) -> Vec<Delivered<S::Handle>> {
    let pulled = tokio::time::timeout(SOON, subscription.pull(demand)).await;
    pulled.expect("a delivery in time").expect("a delivery")
}

async fn one<S: Subscription>(subscription: &mut S) -> Delivered<S::Handle> {
    let mut pulled = some(subscription, 1).await;
    assert_eq!(pulled.len(), 1);
    pulled.remove(0)
}

async fn nothing<S: Subscription>(subscription: &mut S, within: Duration) {
    if let Ok(pulled) = tokio::time::timeout(within, subscription.pull(1)).await {
        let pulled = pulled.expect("no error");
        panic!("{:?} was delivered", pulled[0].message);
    }
}

fn text<H>(delivered: &Delivered<H>) -> &str {
    std::str::from_utf8(&delivered.message.payload).expect("a payload in UTF-8")
}

/// A confirmation names where the message is; a repeated id is recognised and stored once.
pub async fn publishing_is_confirmed_and_repeats_are_recognised<B: Broker>(world: World<B>) {
    let publisher = world.broker.publisher().await.expect("a publisher");
    assert!(publisher.connected());
    let message = world.message("once");
    let first = publisher.publish(message.clone()).await.expect("published");
    let again = publisher.publish(message).await.expect("published");
    assert!(!first.duplicate && again.duplicate);
    assert_eq!(
        (&first.stream, first.sequence),
        (&again.stream, again.sequence)
    );
    let other = publisher
        .publish(world.message("other"))
        .await
        .expect("published");
    assert!(other.sequence > first.sequence);
    publisher
        .probe(&world.subject())
        .await
        .expect("its stream answers");

    let mut subscription = world.subscribe(&unique("c")).await;
    assert_eq!(text(&one(&mut subscription).await), "once");
    assert_eq!(text(&one(&mut subscription).await), "other");
}

/// A subject that the broker refuses is the message's fault, and hurts no other message.
pub async fn a_bad_subject_is_rejected_alone<B: Broker>(world: World<B>) {
    use outbox_core::broker::FailureKind;
    let publisher = world.broker.publisher().await.expect("a publisher");
    for subject in ["", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\r\nPUB x 0"] {
        let mut message = world.message("bad");
        message.subject = subject.to_owned();
        let failure = publisher.publish(message).await.expect_err(subject);
        assert_eq!(
            failure.kind(),
            FailureKind::Rejected,
            "{subject:?}: {failure}"
        );
    }
    publisher
        .publish(world.message("good"))
        .await
        .expect("published");
}

/// What was published arrives unchanged and in order, counted as its first delivery.
pub async fn messages_arrive_unchanged_and_in_order<B: Broker>(world: World<B>) {
    let mut subscription = world.subscribe(&unique("c")).await;
    let publisher = world.broker.publisher().await.expect("a publisher");
    for number in 0..20 {
        let sent = world.message(&number.to_string());
        let receipt = publisher.publish(sent.clone()).await.expect("published");
        let got = one(&mut subscription).await;
        assert_eq!(got.message.subject, sent.subject);
        assert_eq!(got.message.payload, sent.payload);
        assert_eq!(got.message.id, sent.id);
        assert_eq!(headers(&got.message), headers(&sent));
        assert_eq!((got.deliveries, got.replay), (1, None));
        assert_eq!(
            (got.origin.stream.as_str(), got.origin.sequence),
            (&*receipt.stream, receipt.sequence)
        );
        let age = OffsetDateTime::now_utc() - got.origin.stored_at;
        assert!(age.abs() < Duration::from_secs(60), "{age}");
        got.handle.ack().await.expect("acknowledged");
    }
}

/// A settled message does not come again; the server has confirmed it when `ack` returns.
pub async fn acknowledged_and_terminated_messages_do_not_return<B: Broker>(world: World<B>) {
    let name = unique("c");
    let mut subscription = world.subscribe(&name).await;
    world.publish(&["a", "b"]).await;
    one(&mut subscription)
        .await
        .handle
        .ack()
        .await
        .expect("acknowledged");
    let second = one(&mut subscription).await;
    second
        .handle
        .terminate("it is\nof no use")
        .await
        .expect("terminated");
    let pending = subscription.pending().await.expect("pending");
    assert_eq!((pending.waiting, pending.unsettled), (0, 0));
    nothing(&mut subscription, ACK_WAIT + MOMENT).await;
}

/// A message without any sign comes again after the ack wait, counted once more.
pub async fn an_unsettled_message_returns_after_the_ack_wait<B: Broker>(world: World<B>) {
    let mut subscription = world.subscribe(&unique("c")).await;
    world.publish(&["a"]).await;
    let start = Instant::now();
    let first = one(&mut subscription).await;
    nothing(&mut subscription, ACK_WAIT - MOMENT).await;
    let second = one(&mut subscription).await;
    assert!(start.elapsed() > ACK_WAIT - MOMENT, "{:?}", start.elapsed());
    assert_eq!((first.deliveries, second.deliveries), (1, 2));
    assert_eq!(first.origin, second.origin);
}

/// A sign of progress starts the ack wait anew.
pub async fn progress_extends_the_ack_wait<B: Broker>(world: World<B>) {
    let name = unique("c");
    let mut subscription = world.subscribe(&name).await;
    world.publish(&["a"]).await;
    let held = one(&mut subscription).await;
    for _ in 0..4 {
        nothing(&mut subscription, ACK_WAIT / 2).await;
        held.handle.in_progress().await.expect("sent");
    }
    held.handle.ack().await.expect("acknowledged");
    nothing(&mut subscription, ACK_WAIT + MOMENT).await;
}

/// A message that is handed back returns at once, or after the delay and not before.
pub async fn a_message_is_handed_back_with_its_delay<B: Broker>(world: World<B>) {
    let mut subscription = world.subscribe(&unique("c")).await;
    world.publish(&["a"]).await;
    let first = one(&mut subscription).await;
    first.handle.nak(Duration::ZERO).await.expect("handed back");
    let at_once = Instant::now();
    let second = one(&mut subscription).await;
    assert!(at_once.elapsed() < ACK_WAIT / 2);
    assert_eq!(second.deliveries, 2);

    // A delay may be longer than the ack wait.
    let delay = ACK_WAIT + Duration::from_secs(1);
    second.handle.nak(delay).await.expect("handed back");
    nothing(&mut subscription, delay - MOMENT).await;
    assert_eq!(one(&mut subscription).await.deliveries, 3);
}

/// A delayed message holds up no other.
pub async fn a_delayed_message_blocks_nothing<B: Broker>(world: World<B>) {
    let mut subscription = world.subscribe(&unique("c")).await;
    world.publish(&["bad", "good"]).await;
    let bad = one(&mut subscription).await;
    bad.handle
        .nak(Duration::from_secs(60))
        .await
        .expect("handed back");
    assert_eq!(text(&one(&mut subscription).await), "good");
}

/// Never more than asked for, and all in the end.
pub async fn demand_is_never_exceeded<B: Broker>(world: World<B>) {
    let mut subscription = world.subscribe(&unique("c")).await;
    let texts: Vec<String> = (0..60).map(|number| number.to_string()).collect();
    world
        .publish(&texts.iter().map(String::as_str).collect::<Vec<_>>())
        .await;
    let mut seen = Vec::new();
    for demand in (1..=7).cycle() {
        let pulled = some(&mut subscription, demand).await;
        assert!(
            (1..=demand).contains(&pulled.len()),
            "{} of {demand}",
            pulled.len()
        );
        for delivered in pulled {
            seen.push(text(&delivered).to_owned());
            delivered.handle.ack().await.expect("acknowledged");
        }
        if seen.len() >= texts.len() {
            break;
        }
    }
    assert_eq!(seen, texts);
}

/// What one process has not asked for stays free for another.
pub async fn nothing_is_fetched_ahead<B: Broker>(world: World<B>) {
    let name = unique("c");
    let (mut first, mut second) = (world.subscribe(&name).await, world.subscribe(&name).await);
    world
        .publish(&["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"])
        .await;
    let mut held = Vec::new();
    while held.len() < 2 {
        held.extend(some(&mut first, 2 - held.len()).await);
    }
    let mut rest = 0;
    while rest < 8 {
        for delivered in some(&mut second, 8).await {
            assert_eq!(delivered.deliveries, 1);
            delivered.handle.ack().await.expect("acknowledged");
            rest += 1;
        }
    }
}

/// Dropping a `pull` at any moment loses nothing.
pub async fn a_dropped_pull_loses_nothing<B: Broker>(world: World<B>) {
    let mut subscription = world.subscribe(&unique("c")).await;
    let texts: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let publishing = {
        let world = world.clone();
        let texts = texts.clone();
        tokio::spawn(async move {
            world
                .publish(&texts.iter().map(String::as_str).collect::<Vec<_>>())
                .await
        })
    };
    let mut seen = BTreeSet::new();
    let start = Instant::now();
    while seen.len() < texts.len() && start.elapsed() < SOON {
        let patience = Duration::from_micros(fastrand::u64(1..2_000));
        if let Ok(pulled) = tokio::time::timeout(patience, subscription.pull(5)).await {
            for delivered in pulled.expect("a delivery") {
                assert_eq!(delivered.deliveries, 1, "{} came again", text(&delivered));
                seen.insert(text(&delivered).to_owned());
                delivered.handle.ack().await.expect("acknowledged");
            }
        }
    }
    assert_eq!(seen.len(), texts.len());
    publishing.await.expect("published");
}

/// Each consumer gets every message; subscriptions of one consumer share them.
pub async fn consumers_are_independent<B: Broker>(world: World<B>) {
    let (billing, shipping) = (unique("billing"), unique("shipping"));
    let mut first = world.subscribe(&billing).await;
    let mut second = world.subscribe(&billing).await;
    let mut other = world.subscribe(&shipping).await;
    world.publish(&["a", "b"]).await;
    let shared = [one(&mut first).await, one(&mut second).await];
    let shared: BTreeSet<_> = shared.iter().map(text).collect();
    assert_eq!(shared, BTreeSet::from(["a", "b"]));
    assert_eq!(text(&one(&mut other).await), "a");
    assert_eq!(text(&one(&mut other).await), "b");
}

/// A consumer that did not exist yet gets what was published before, unless it says otherwise.
pub async fn a_new_consumer_starts_where_it_says<B: Broker>(world: World<B>) {
    world.publish(&["before"]).await;
    let mut beginning = world.subscribe(&unique("c")).await;
    let spec = ConsumerSpec {
        start: StartAt::Now,
        ..world.spec(&unique("c"))
    };
    let mut now = world.broker.subscribe(&spec).await.expect("subscribe");
    world.publish(&["after"]).await;
    assert_eq!(text(&one(&mut beginning).await), "before");
    assert_eq!(text(&one(&mut now).await), "after");
    // Opened again, it goes on where it was.
    drop(now);
    let mut now = world.broker.subscribe(&spec).await.expect("subscribe");
    world.publish(&["later"]).await;
    loop {
        match text(&one(&mut now).await) {
            "later" => break,
            other => assert_eq!(other, "after"),
        }
    }
}

/// A consumer gets the messages of its subjects only.
pub async fn other_subjects_are_not_delivered<B: Broker>(world: World<B>) {
    let mut subscription = world.subscribe(&unique("c")).await;
    let publisher = world.broker.publisher().await.expect("a publisher");
    let mut other = world.message("other");
    other.subject = format!("{}.orders.cancelled", world.prefix);
    publisher.publish(other).await.expect("published");
    world.publish(&["mine"]).await;
    assert_eq!(text(&one(&mut subscription).await), "mine");
}

/// The backlog is known.
pub async fn pending_counts_waiting_and_unsettled<B: Broker>(world: World<B>) {
    let mut subscription = world.subscribe(&unique("c")).await;
    world.publish(&["a", "b", "c"]).await;
    let _held = one(&mut subscription).await;
    let pending = subscription.pending().await.expect("pending");
    assert_eq!((pending.waiting, pending.unsettled), (2, 1));
}

/// Closing hands back what has arrived and not been returned, so that others get it at once.
pub async fn closing_hands_back<B: Broker>(world: World<B>) {
    let name = unique("c");
    let mut first = world.subscribe(&name).await;
    // Asks for five, and is not there when they come.
    assert!(
        tokio::time::timeout(Duration::from_millis(100), first.pull(5))
            .await
            .is_err()
    );
    world
        .publish(&["0", "1", "2", "3", "4", "5", "6", "7"])
        .await;
    let back = first.close().await;
    for delivered in &back {
        delivered
            .handle
            .nak(Duration::ZERO)
            .await
            .expect("handed back");
    }
    let start = Instant::now();
    let mut second = world.subscribe(&name).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 8 {
        for delivered in some(&mut second, 8).await {
            seen.insert(text(&delivered).to_owned());
            delivered.handle.ack().await.expect("acknowledged");
        }
    }
    assert!(start.elapsed() < ACK_WAIT / 2, "{:?}", start.elapsed());
}

/// A dead letter keeps everything; storing it again changes nothing.
pub async fn a_dead_letter_is_stored_once_and_complete<B: Broker>(world: World<B>) {
    let consumer = unique("c");
    let letter = world.give_up(&consumer, "poison").await;
    for _ in 0..3 {
        world
            .broker
            .dead_letter(&letter)
            .await
            .expect("stored again");
    }
    assert_eq!(world.broker.dead_letter_count().await.expect("a count"), 1);
    let letters = world.letters(None).await;
    assert_eq!(letters.len(), 1);
    let (number, found) = letters.into_iter().next().expect("a letter");
    let shown = world.broker.dead_letter_by_number(number).await;
    assert_eq!(shown.expect("a letter").as_ref(), Some(&found));
    assert_eq!(sorted(found), sorted(letter));
}

/// Numbers that no letter has are no error.
pub async fn an_unknown_number_is_no_letter<B: Broker>(world: World<B>) {
    assert_eq!(world.letters(None).await, []);
    for number in [0, 1, 4_711, u64::MAX] {
        assert_eq!(
            world
                .broker
                .dead_letter_by_number(number)
                .await
                .expect("no error"),
            None
        );
        assert!(!world.broker.replay(number).await.expect("no error"));
        assert!(!world.broker.discard(number).await.expect("no error"));
    }
    assert_eq!(world.broker.dead_letter_count().await.expect("a count"), 0);
}

/// Two consumers that give up one message leave two letters, which are replayed apart.
pub async fn letters_of_two_consumers_are_apart<B: Broker>(world: World<B>) {
    let (billing, shipping) = (unique("billing"), unique("shipping"));
    let (mut first, mut second) = (
        world.subscribe(&billing).await,
        world.subscribe(&shipping).await,
    );
    world.publish(&["poison"]).await;
    for (name, subscription) in [(&billing, &mut first), (&shipping, &mut second)] {
        let delivered = one(subscription).await;
        let letter = letter(name, &delivered);
        world.broker.dead_letter(&letter).await.expect("stored");
        delivered
            .handle
            .terminate("given up")
            .await
            .expect("terminated");
    }
    assert_eq!(world.broker.dead_letter_count().await.expect("a count"), 2);
    let of_billing = world.letters(Some(&billing)).await;
    assert_eq!(of_billing.len(), 1);
    assert_eq!(of_billing[0].1.consumer, billing);

    let (mut replayed, mut others) = (
        world.replays(&billing).await,
        world.replays(&shipping).await,
    );
    assert!(
        world
            .broker
            .replay(of_billing[0].0)
            .await
            .expect("replayed")
    );
    assert_eq!(text(&one(&mut replayed).await), "poison");
    nothing(&mut others, MOMENT).await;
    nothing(&mut second, MOMENT).await;
    nothing(&mut first, MOMENT).await;
    assert_eq!(world.letters(None).await.len(), 1);
}

/// A replayed letter comes as the original, says so, and is gone from the queue.
pub async fn a_replay_brings_the_original_back<B: Broker>(world: World<B>) {
    let consumer = unique("c");
    let letter = world.give_up(&consumer, "poison").await;
    let number = world.letters(None).await[0].0;
    assert!(world.broker.replay(number).await.expect("replayed"));
    assert!(
        !world
            .broker
            .replay(number)
            .await
            .expect("no letter any more")
    );
    assert_eq!(world.broker.dead_letter_count().await.expect("a count"), 0);
    assert_eq!(world.letters(None).await, []);

    let mut replays = world.replays(&consumer).await;
    let delivered = one(&mut replays).await;
    assert_eq!(delivered.origin, letter.origin);
    assert_eq!((delivered.replay, delivered.deliveries), (Some(1), 1));
    assert_eq!(delivered.message.id, letter.message.id);
    assert_eq!(delivered.message.subject, letter.message.subject);
    assert_eq!(delivered.message.payload, letter.message.payload);
    assert_eq!(headers(&delivered.message), headers(&letter.message));
    delivered.handle.ack().await.expect("acknowledged");
    nothing(&mut replays, ACK_WAIT + MOMENT).await;
}

/// A replay that dies again is a letter again, and counts its replays.
pub async fn a_replay_can_die_again<B: Broker>(world: World<B>) {
    let consumer = unique("c");
    world.give_up(&consumer, "poison").await;
    let mut replays = world.replays(&consumer).await;
    for round in 1..=3 {
        let number = world.letters(None).await[0].0;
        assert!(world.broker.replay(number).await.expect("replayed"));
        let delivered = one(&mut replays).await;
        assert_eq!(delivered.replay, Some(round));
        let letter = letter(&consumer, &delivered);
        world.broker.dead_letter(&letter).await.expect("stored");
        delivered
            .handle
            .terminate("given up again")
            .await
            .expect("terminated");
        let letters = world.letters(None).await;
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].1.replays, round);
    }
    nothing(&mut replays, MOMENT).await;
}

/// A replay that is handed back comes again.
pub async fn a_replay_is_redelivered_like_any_message<B: Broker>(world: World<B>) {
    let consumer = unique("c");
    world.give_up(&consumer, "poison").await;
    let number = world.letters(None).await[0].0;
    assert!(world.broker.replay(number).await.expect("replayed"));
    let mut replays = world.replays(&consumer).await;
    let first = one(&mut replays).await;
    first.handle.nak(Duration::ZERO).await.expect("handed back");
    let second = one(&mut replays).await;
    assert_eq!((second.deliveries, second.replay), (2, Some(1)));
    assert_eq!(first.message, second.message);
}

/// A discarded letter is gone.
pub async fn a_discarded_letter_is_gone<B: Broker>(world: World<B>) {
    let consumer = unique("c");
    world.give_up(&consumer, "poison").await;
    let number = world.letters(None).await[0].0;
    assert!(world.broker.discard(number).await.expect("discarded"));
    assert!(
        !world
            .broker
            .discard(number)
            .await
            .expect("no letter any more")
    );
    assert_eq!(world.broker.dead_letter_count().await.expect("a count"), 0);
    let mut replays = world.replays(&consumer).await;
    nothing(&mut replays, MOMENT).await;
}

/// Letters are listed oldest first, in pages.
pub async fn letters_are_listed_in_pages<B: Broker>(world: World<B>) {
    let consumer = unique("c");
    for text in ["a", "b", "c", "d", "e"] {
        world.give_up(&consumer, text).await;
    }
    let mut texts = Vec::new();
    let mut after = 0;
    loop {
        let page = world.broker.dead_letters(Some(&consumer), after, 2).await;
        let page = page.expect("a page");
        assert!(page.len() <= 2);
        let Some((last, _)) = page.last() else { break };
        assert!(*last > after);
        after = *last;
        texts.extend(page.into_iter().map(|(_, letter)| letter.message.payload));
    }
    assert_eq!(texts, ["a", "b", "c", "d", "e"]);
    let nobody = world.letters(Some("nobody")).await;
    assert_eq!(nobody, []);
}

/// A clone is the same broker, usable from another task at the same time.
pub async fn clones_share_everything<B: Broker>(world: World<B>) {
    let consumer = unique("c");
    let mut subscription = world.subscribe(&consumer).await;
    let clone = world.clone();
    tokio::spawn(async move { clone.publish(&["a"]).await })
        .await
        .expect("published");
    assert_eq!(text(&one(&mut subscription).await), "a");
    let horizon = world
        .broker
        .redelivery_horizon(&world.spec(&consumer))
        .await;
    // No limit, or nothing that could come again.
    let horizon = horizon.expect("a horizon");
    assert!(
        horizon.is_none_or(|horizon| horizon.is_zero()),
        "{horizon:?}"
    );
}

/// Deliveries keep their handles usable after the subscription is gone.
pub async fn handles_outlive_their_subscription<B: Broker>(world: World<B>) {
    let name = unique("c");
    let mut subscription = world.subscribe(&name).await;
    world.publish(&["a", "b"]).await;
    let held: Deliveries<B> = vec![one(&mut subscription).await, one(&mut subscription).await];
    assert_eq!(subscription.close().await.len(), 0);
    for delivered in &held {
        delivered.handle.ack().await.expect("acknowledged");
    }
    let mut again = world.subscribe(&name).await;
    nothing(&mut again, ACK_WAIT + MOMENT).await;
}

/// Runs every check of the suite, each as a test of its own, in the worlds that `$setup` makes.
#[macro_export]
macro_rules! broker_conformance {
    ($setup:path) => {
        $crate::broker_conformance! { @ $setup:
            publishing_is_confirmed_and_repeats_are_recognised
            a_bad_subject_is_rejected_alone
            messages_arrive_unchanged_and_in_order
            acknowledged_and_terminated_messages_do_not_return
            an_unsettled_message_returns_after_the_ack_wait
            progress_extends_the_ack_wait
            a_message_is_handed_back_with_its_delay
            a_delayed_message_blocks_nothing
            demand_is_never_exceeded
            nothing_is_fetched_ahead
            a_dropped_pull_loses_nothing
            consumers_are_independent
            a_new_consumer_starts_where_it_says
            other_subjects_are_not_delivered
            pending_counts_waiting_and_unsettled
            closing_hands_back
            a_dead_letter_is_stored_once_and_complete
            an_unknown_number_is_no_letter
            letters_of_two_consumers_are_apart
            a_replay_brings_the_original_back
            a_replay_can_die_again
            a_replay_is_redelivered_like_any_message
            a_discarded_letter_is_gone
            letters_are_listed_in_pages
            clones_share_everything
            handles_outlive_their_subscription
        }
    };
    (@ $setup:path: $($check:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                $crate::conformance::broker::$check($setup().await).await;
            }
        )*
    };
}
