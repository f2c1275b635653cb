//! Clients that ask again as soon as they have an answer, on kept connections: a closed loop.

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::{Context as _, ensure};

use super::sample::Sample;
use crate::{http::Connection, workspace::now};

/// Asks with `concurrency` clients for this long; the message is one request as bytes.
pub(crate) fn run(
    address: SocketAddr,
    message: &[u8],
    concurrency: usize,
    length: Duration,
) -> anyhow::Result<Sample> {
    let latencies_us = thread::scope(|scope| {
        let clients: Vec<_> = (0..concurrency)
            .map(|_| scope.spawn(|| ask(address, message, length)))
            .collect();
        let mut all = Vec::new();
        for client in clients {
            all.extend(client.join().expect("a client does not panic")?);
        }
        anyhow::Ok(all)
    })?;
    Ok(Sample {
        latencies_us,
        cpu_s: 0.0,
    })
}

fn ask(address: SocketAddr, message: &[u8], length: Duration) -> anyhow::Result<Vec<f64>> {
    let mut connection =
        Connection::open(address, Duration::from_mins(1)).context("connect to the gateway")?;
    let mut latencies = Vec::new();
    let end = now() + length;
    loop {
        let start = now();
        if start >= end {
            return Ok(latencies);
        }
        let answer = connection.exchange(message).context("ask the gateway")?;
        latencies.push((now() - start).as_secs_f64() * 1e6);
        ensure!(
            answer.status == 200,
            "the gateway answered {}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
    }
}
