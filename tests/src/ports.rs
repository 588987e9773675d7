//! Picks ports for servers.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{LazyLock, Mutex, PoisonError};

static TAKEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A free port on 127.0.0.1 that this process has not handed out before.
///
/// The port lies below the range from which the kernel takes client ports. A port of that range
/// could be taken by any outgoing connection while its server is down, even by a client that
/// reconnects to the port itself.
///
/// Another process may still take the port before its server does, so starting a server retries
/// with another port.
///
/// # Panics
///
/// When no port is free.
#[must_use]
pub fn free_port() -> u16 {
    let below = first_ephemeral_port();
    for _ in 0..1000 {
        let port = fastrand::u16(10_000..below);
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            taken.insert(port);
            return port;
        }
    }
    panic!("no free port between 10000 and {below}");
}

fn first_ephemeral_port() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|first| *first > 11_000)
        .unwrap_or(32_768)
}
