//! Connections under bounds: none is kept for ever, and their number and memory are bounded.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::tls::{self, Peer, Tls};
use crate::metrics::Metrics;
use crate::supervise::Children;

/// A request's head must be whole within this time, counted from the end of the request before it: it ends idle
/// connections too.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A request must be read and answered within this time.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// A client that takes not one byte of an answer for this long is dropped.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection is ended, after the request under way, when it is this old: slow readers cannot hold all places.
const LIFETIME: Duration = Duration::from_mins(5);
/// Connections at once. More wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 256;
/// Bytes of a webhook's body: some 4,000 alerts as Alertmanager writes them.
pub const BODY_MAX: usize = 4 * 1024 * 1024;
/// KiB of all webhook bodies that are being read at once.
pub(super) const BODIES_KIB: usize = 4 * BODY_MAX / 1024;
/// Bytes of a request's head.
const HEAD_MAX: usize = 32 * 1024;
/// How long requests under way get when the daemon stops.
pub const DRAIN: Duration = Duration::from_secs(3);
/// Pause after an accept that failed (usually: no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves until `stop` is cancelled, then drains.
pub(super) async fn serve(listener: TcpListener, router: Router, tls: Option<(Tls, Arc<Metrics>)>, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = Children::new();
    let mut look = tokio::time::interval(tls::LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = look.tick(), if tls.is_some() => if let Some((tls, metrics)) = &tls {
                tls.refresh(metrics);
            },
            (peer, ended) = connections.next() => if let Err(panic) = ended {
                tracing::error!(%peer, panic, "a connection's task panicked");
            },
            Some((stream, peer, place)) = accept(&listener, &places) => {
                let (router, stop) = (router.clone(), stop.clone());
                let acceptor = tls.as_ref().map(|(tls, _)| tls.acceptor());
                connections.spawn(peer, async move {
                    let _place = place;
                    match acceptor {
                        None => connection(stream, router, stop).await,
                        Some(acceptor) => secure(stream, &acceptor, router, stop).await,
                    }
                });
            }
        }
    }
    drop(listener);
    let aborted = connections.drain(DRAIN).await.len();
    if aborted > 0 {
        tracing::warn!(aborted, "connections were cut off at the end");
    }
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return Some((stream, peer, place)),
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

/// A connection whose handshake is over within the time of a request's head; a certificate that was shown goes with every
/// request.
async fn secure(stream: TcpStream, acceptor: &TlsAcceptor, router: Router, stop: CancellationToken) {
    let shaken = tokio::select! {
        () = stop.cancelled() => return,
        shaken = timeout(HEADER_TIMEOUT, acceptor.accept(stream)) => shaken,
    };
    match shaken {
        Ok(Ok(stream)) => {
            let peer = Peer::of(stream.get_ref().1.peer_certificates());
            connection(stream, router.layer(Extension(peer)), stop).await;
        }
        // The client's own: no TLS, too old, a certificate that is not one of ours.
        Ok(Err(error)) => tracing::debug!(%error, "no TLS connection came about"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn connection<S>(stream: S, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router);
    let io = TokioIo::new(Unstalled::new(stream, STALL_TIMEOUT));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HEAD_MAX);
    let mut served = pin!(http.serve_connection(io, service));
    tokio::select! {
        // An error here is the client's: it went away, or spoke no HTTP.
        _ = served.as_mut() => return,
        () = stop.cancelled() => {}
        () = sleep(LIFETIME) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = timeout(REQUEST_TIMEOUT + STALL_TIMEOUT, served).await;
}

/// A stream whose writes fail when the other side takes nothing for `limit`.
struct Unstalled<S> {
    stream: S,
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Unstalled<S> {
    const fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, stalled: None }
    }

    fn bounded<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let limit = self.limit;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx));
        self.stalled = None;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unstalled<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unstalled<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.bounded(polled, cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.bounded(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.bounded(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bounded(polled, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_takes_fails_and_one_that_is_taken_slowly_does_not() {
        let (near, mut far) = tokio::io::duplex(4);
        let limit = Duration::from_millis(400);
        let mut near = Unstalled::new(near, limit);
        let slow_reader = async {
            let mut four = [0; 4];
            for _ in 0..3 {
                sleep(limit / 2).await;
                far.read_exact(&mut four).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(b"twelve bytes"), slow_reader);
        written.unwrap();
        let error = near.write_all(b"more than four").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
