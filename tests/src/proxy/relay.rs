//! Forwarding of connections, as far as the faults let them through.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::future::join;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Direction, Faults, Status};

/// Listens on a port of 127.0.0.1.
pub(super) fn bind(port: u16) -> std::io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Accepts connections, unless the proxy refuses them, until the proxy is gone.
pub(super) async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    target: SocketAddr,
    mut faults: watch::Receiver<Faults>,
    status: watch::Sender<Status>,
) {
    let mut listener = Some(listener);
    loop {
        let now = *faults.borrow_and_update();
        if now.refusing {
            listener = None;
            status.send_modify(|status| status.listening = false);
        } else if listener.is_none() {
            listener = Some(bind(address.port()).expect("the proxy listens again"));
            status.send_modify(|status| status.listening = true);
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = faults.changed() => if changed.is_err() { return },
            accepted = accepted => if let Ok((client, _)) = accepted {
                status.send_modify(|status| status.connections += 1);
                let (faults, status) = (faults.clone(), status.clone());
                tokio::spawn(async move {
                    connect(client, target, faults, now.resets).await;
                    status.send_modify(|status| {
                        status.connections -= 1;
                        status.ended += 1;
                    });
                });
            },
        }
    }
}

/// Serves one connection until both sides have closed it or a fault ends it.
async fn connect(
    mut client: TcpStream,
    target: SocketAddr,
    mut faults: watch::Receiver<Faults>,
    resets: u64,
) {
    let Ok(mut server) = TcpStream::connect(target).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = client
        .set_nodelay(true)
        .and_then(|()| server.set_nodelay(true));
    let holed = AtomicBool::new(false);
    let is_over = |faults: &Faults| {
        faults.resets != resets || faults.dropping.is_none() && holed.load(Ordering::Relaxed)
    };
    let is_reset = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let upstream = pump(
            from_client,
            to_server,
            Direction::Upstream,
            faults.clone(),
            &holed,
        );
        let downstream = pump(
            from_server,
            to_client,
            Direction::Downstream,
            faults.clone(),
            &holed,
        );
        tokio::select! {
            _ = faults.wait_for(is_over) => true,
            _ = join(upstream, downstream) => false,
        }
    };
    if is_reset {
        let _ = client
            .set_zero_linger()
            .and_then(|()| server.set_zero_linger());
    }
}

/// Forwards one direction of a connection until its source ends.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
    faults: watch::Receiver<Faults>,
    holed: &AtomicBool,
) {
    let (queue, mut queued) = mpsc::channel::<(Instant, Bytes)>(64);
    let mut watched = faults.clone();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let Ok(now) = watched
                .wait_for(|faults| !faults.paused)
                .await
                .map(|now| *now)
            else {
                break;
            };
            if now.dropping == Some(direction) {
                holed.store(true, Ordering::Relaxed);
                continue;
            }
            let chunk = Bytes::copy_from_slice(&buffer[..length]);
            if queue
                .send((Instant::now() + now.delay, chunk))
                .await
                .is_err()
            {
                break;
            }
        }
    };
    let mut watched = faults;
    let write = async move {
        while let Some((due, chunk)) = queued.recv().await {
            tokio::time::sleep_until(due).await;
            let go_on = watched.wait_for(|faults| !faults.paused).await.is_ok();
            if !go_on || to.write_all(&chunk).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    };
    join(read, write).await;
}
