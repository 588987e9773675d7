//! Breaking a world at random, as a seed says.

use std::{collections::BTreeMap, future::Future, pin::Pin, time::Duration};

use async_nats::HeaderMap;
use sea_orm::{ConnectionTrait, DbBackend, TransactionTrait};
use tokio::time::{Instant, sleep};

use super::{shop::CONSUMERS, world::World};
use crate::{Child, Direction};

const NODE_EXIT: Duration = Duration::from_secs(40);

/// Something that breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A node is killed and started again.
    KillNode,
    /// A node is asked to stop, stops, and is started again.
    StopNode,
    /// A node is frozen beyond its lease and its messages' ack wait, and goes on.
    FreezeNode,
    /// NATS is killed and started again.
    KillNats,
    /// NATS is frozen for a while.
    FreezeNats,
    /// All connections to NATS are reset.
    ResetNats,
    /// The network to NATS forwards nothing for a while.
    PauseNats,
    /// The network to NATS loses what goes one way for a while.
    LoseOneWayToNats,
    /// The network to NATS is slow for a while.
    SlowNats,
    /// All connections to the database are reset.
    ResetDatabase,
    /// The network to the database forwards nothing for a while.
    PauseDatabase,
    /// The database server is killed and started again.
    KillDatabase,
    /// An old snapshot is held for a while.
    HoldSnapshot,
    /// A consumer is deleted by hand.
    DeleteDurable,
    /// A message of the stream is sent again by hand.
    RepeatMessage,
}

const EVERYWHERE: [Fault; 11] = [
    Fault::KillNode,
    Fault::StopNode,
    Fault::FreezeNode,
    Fault::KillNats,
    Fault::FreezeNats,
    Fault::ResetNats,
    Fault::PauseNats,
    Fault::LoseOneWayToNats,
    Fault::SlowNats,
    Fault::DeleteDurable,
    Fault::RepeatMessage,
];
const WITH_A_SERVER: [Fault; 4] = [
    Fault::ResetDatabase,
    Fault::PauseDatabase,
    Fault::KillDatabase,
    Fault::HoldSnapshot,
];

/// Kills a server and starts it again.
pub type Restart<'a> = dyn Fn() -> Pin<Box<dyn Future<Output = ()> + 'a>> + 'a;

/// Breaks a world.
pub struct Storm<'a> {
    world: &'a World,
    random: fastrand::Rng,
    nodes: Vec<Child>,
    /// Kills the database's server and starts it again; the world's own server only.
    restart_database: Option<Box<Restart<'a>>>,
    faults: BTreeMap<Fault, u32>,
}

impl std::fmt::Debug for Storm<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storm")
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl<'a> Storm<'a> {
    /// Starts a node for each slot; `restart_database` kills the database's server and starts it
    /// again, if it may be broken. Each round of one world has faults of its own.
    #[must_use]
    pub fn begin(world: &'a World, round: u64, restart_database: Option<Box<Restart<'a>>>) -> Self {
        let mut storm = Self {
            world,
            random: fastrand::Rng::with_seed(world.settings.seed.wrapping_add(round)),
            nodes: Vec::new(),
            restart_database,
            faults: BTreeMap::new(),
        };
        for slot in 0..world.settings.slots {
            storm.nodes.push(start(world, slot));
        }
        storm
    }

    /// Breaks things for so long.
    pub async fn rage(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let pause = self.random.u64(200..1500);
            sleep(Duration::from_millis(pause)).await;
            let fault = self.choose();
            *self.faults.entry(fault).or_default() += 1;
            self.strike(fault).await;
        }
    }

    fn choose(&mut self) -> Fault {
        let mut possible = EVERYWHERE.to_vec();
        if self.world.to_database.is_some() {
            possible.extend(WITH_A_SERVER);
        }
        if self.restart_database.is_none() {
            possible.retain(|fault| *fault != Fault::KillDatabase);
        }
        // A new durable delivers the whole stream again: not all the time.
        if self.random.u8(..4) > 0 {
            possible.retain(|fault| *fault != Fault::DeleteDurable);
        }
        possible[self.random.usize(..possible.len())]
    }

    async fn strike(&mut self, fault: Fault) {
        let world = self.world;
        let slot = self.random.usize(..self.nodes.len());
        let number = i64::try_from(slot).unwrap_or_default();
        let moment = Duration::from_millis(self.random.u64(300..4000));
        match fault {
            Fault::KillNode => {
                self.nodes[slot].kill();
                self.nodes[slot] = start(world, number);
            }
            Fault::StopNode => {
                self.nodes[slot].terminate();
                self.nodes[slot].exit(NODE_EXIT).await;
                self.nodes[slot] = start(world, number);
            }
            Fault::FreezeNode => {
                self.nodes[slot].freeze();
                sleep(moment).await;
                self.nodes[slot].thaw();
            }
            Fault::KillNats => world.nats.restart().await,
            Fault::FreezeNats => {
                world.nats.freeze();
                sleep(moment).await;
                world.nats.thaw();
            }
            Fault::ResetNats => world.to_nats.reset().await,
            Fault::PauseNats | Fault::LoseOneWayToNats | Fault::SlowNats => {
                match fault {
                    Fault::PauseNats => world.to_nats.pause(),
                    Fault::SlowNats => world.to_nats.delay(moment / 10),
                    _ if self.random.bool() => world.to_nats.drop_direction(Direction::Upstream),
                    _ => world.to_nats.drop_direction(Direction::Downstream),
                }
                sleep(moment).await;
                world.to_nats.restore().await;
            }
            Fault::ResetDatabase => {
                if let Some(proxy) = &world.to_database {
                    proxy.reset().await;
                }
            }
            Fault::PauseDatabase => {
                if let Some(proxy) = &world.to_database {
                    proxy.pause();
                    sleep(moment).await;
                    proxy.restore().await;
                }
            }
            Fault::KillDatabase => {
                if let Some(restart) = &self.restart_database {
                    restart().await;
                }
            }
            Fault::HoldSnapshot => hold_snapshot(world, moment).await,
            Fault::DeleteDurable => {
                let consumer = CONSUMERS[self.random.usize(..CONSUMERS.len())];
                let jetstream = world.nats.nats().jetstream().await;
                if let Ok(stream) = jetstream.get_stream("SHOP").await {
                    let _ = stream.delete_consumer(consumer).await;
                }
            }
            Fault::RepeatMessage => self.repeat_message().await,
        }
    }

    /// Sends a message again as it is, without the id that JetStream would know it by.
    async fn repeat_message(&mut self) {
        let jetstream = self.world.nats.nats().jetstream().await;
        let Ok(stream) = jetstream.get_stream("SHOP").await else {
            return;
        };
        let last = stream.cached_info().state.last_sequence;
        let Ok(message) = stream
            .get_raw_message(self.random.u64(1..=last.max(1)))
            .await
        else {
            return;
        };
        let mut headers = HeaderMap::new();
        for (name, values) in message.headers.iter() {
            if name.to_string() != "Nats-Msg-Id" {
                for value in values {
                    headers.append(name.clone(), value.clone());
                }
            }
        }
        let sent = jetstream.publish_with_headers(message.subject, headers, message.payload);
        if let Ok(sent) = sent.await {
            let _ = sent.await;
        }
    }

    /// Ends: every node is asked to stop, and a whole one is started in its place, which places no
    /// more orders. Returns the nodes and how often what has happened.
    ///
    /// # Panics
    ///
    /// When a node does not stop.
    pub async fn end(self) -> (Vec<Child>, BTreeMap<Fault, u32>) {
        for node in &self.nodes {
            node.terminate();
            node.exit(NODE_EXIT).await;
        }
        let slots = 0..self.world.settings.slots;
        let nodes = slots
            .map(|slot| self.world.node(slot, "relay,consumer", &[]))
            .collect();
        (nodes, self.faults)
    }
}

fn start(world: &World, slot: i64) -> Child {
    world.node(slot, "orders,relay,consumer", &[])
}

async fn hold_snapshot(world: &World, moment: Duration) {
    let backend = world.db.connection.get_database_backend();
    let Ok(tx) = world.db.connection.begin().await else {
        return;
    };
    let look = match backend {
        DbBackend::Postgres => {
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; INSERT INTO mended (number) VALUES (0)"
        }
        _ => "INSERT INTO mended (number) VALUES (0)",
    };
    let _ = tx.execute_unprepared(look).await;
    sleep(moment).await;
    let _ = tx.rollback().await;
}
