//! A connection that ends when its client accepts no byte for a while.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::serve::limits::WRITE_TIME;

/// A stream whose writes fail after [`WRITE_TIME`] without progress.
#[derive(Debug)]
pub(super) struct TimedStream {
    stream: TcpStream,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, deadline: None }
    }

    /// `progress`, or an error if it is pending for too long.
    fn limit<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.deadline = None;
            return progress;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(WRITE_TIME)));
        deadline.as_mut().poll(context).map(|()| Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit(context, progress)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_flush(context);
        self.limit(context, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
