//! A TCP proxy that breaks the network between a client and a server.

mod relay;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::relay::{accept, bind};
use crate::free_port;

const PATIENCE: Duration = Duration::from_secs(10);

/// A way through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Upstream,
    /// From the server to the client.
    Downstream,
}

/// What is broken at present.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Connections that were accepted before the last reset end.
    resets: u64,
    refusing: bool,
    paused: bool,
    delay: Duration,
    dropping: Option<Direction>,
}

/// What the proxy is doing at present.
#[derive(Clone, Copy, Debug, Default)]
struct Status {
    listening: bool,
    connections: u64,
    /// Connections that have ended since the start.
    ended: u64,
}

/// A proxy in front of one server; it ends on drop.
///
/// Faults add up until [`restore`](Self::restore) ends them all.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    target: SocketAddr,
    faults: watch::Sender<Faults>,
    status: watch::Receiver<Status>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of the server of a URL such as `nats://127.0.0.1:4222`.
    ///
    /// # Panics
    ///
    /// When the URL holds no IP address with a port.
    pub async fn start(url: &str) -> Self {
        let target = address(url);
        let (faults, watched) = watch::channel(Faults::default());
        let (reported, status) = watch::channel(Status::default());
        let listener = (0..5).find_map(|_| bind(free_port()).ok());
        let listener = listener.expect("the proxy listens");
        let address = listener.local_addr().expect("the proxy's address");
        reported.send_modify(|status| status.listening = true);
        let accepting = tokio::spawn(accept(listener, address, target, watched, reported));
        Self {
            address,
            target,
            faults,
            status,
            accepting,
        }
    }

    /// A URL of the server, changed so that it leads through the proxy.
    ///
    /// # Panics
    ///
    /// When the URL is not one of the proxy's server.
    #[must_use]
    pub fn through(&self, url: &str) -> String {
        let target = self.target.to_string();
        assert!(url.contains(&target), "{url} is not a URL of {target}");
        url.replacen(&target, &self.address.to_string(), 1)
    }

    /// How many connections go through the proxy.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.status.borrow().connections
    }

    /// Resets every connection and refuses new ones.
    pub async fn cut(&self) {
        self.faults.send_modify(|faults| {
            faults.resets += 1;
            faults.refusing = true;
        });
        self.reach(|status| !status.listening && status.connections == 0)
            .await;
    }

    /// Resets every connection; new ones are served.
    pub async fn reset(&self) {
        let before = *self.status.borrow();
        self.faults.send_modify(|faults| faults.resets += 1);
        self.reach(|status| status.ended >= before.ended + before.connections)
            .await;
    }

    /// Accepts and keeps connections but forwards nothing, as a network that lost its route.
    ///
    /// What is sent meanwhile arrives after [`restore`](Self::restore).
    pub fn pause(&self) {
        self.faults.send_modify(|faults| faults.paused = true);
    }

    /// Forwards everything later by `delay`, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.delay = delay);
    }

    /// Swallows everything that goes in one direction.
    ///
    /// A connection that lost bytes is reset by [`restore`](Self::restore), since TCP never
    /// delivers a stream with a hole.
    pub fn drop_direction(&self, direction: Direction) {
        self.faults
            .send_modify(|faults| faults.dropping = Some(direction));
    }

    /// Ends every fault.
    pub async fn restore(&self) {
        self.faults.send_modify(|faults| {
            *faults = Faults {
                resets: faults.resets,
                ..Faults::default()
            };
        });
        self.reach(|status| status.listening).await;
    }

    async fn reach(&self, reached: impl FnMut(&Status) -> bool) {
        let mut status = self.status.clone();
        let reached = tokio::time::timeout(PATIENCE, status.wait_for(reached)).await;
        reached
            .expect("the proxy obeys in time")
            .expect("the proxy runs");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        // Connections end as soon as the sender of faults is gone.
    }
}

/// The address inside a URL.
fn address(url: &str) -> SocketAddr {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    let address = authority
        .rsplit_once('@')
        .map_or(authority, |(_, address)| address);
    address
        .parse()
        .unwrap_or_else(|error| panic!("the address in {url}: {error}"))
}
