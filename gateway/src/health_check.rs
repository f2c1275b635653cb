//! The check of a gateway from the same machine or container, where there may be no other program that could ask it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// The time within which a gateway that is alive answers. The text of [`HealthError::TooLate`] says it, too.
const LIMIT: Duration = Duration::from_secs(3);
/// The request, which the gateway answers even above its limit of connections.
const REQUEST: &[u8] =
    b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
/// The beginning of the answer of a gateway that is alive.
const ALIVE: &[u8] = b"HTTP/1.1 200 ";
/// The beginning of the answer of a gateway whose listener has TLS: it says so in clear text. Whether somebody trusts its certificate is no
/// question of whether it lives.
const ALIVE_WITH_TLS: &[u8] = b"HTTP/1.1 400 ";

/// The reason why a gateway does not count as alive.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// It cannot be asked.
    #[error("no gateway answers on {0}")]
    NoAnswer(SocketAddr, #[source] io::Error),
    /// It does not answer in time.
    #[error("the gateway on {0} does not answer within 3 s")]
    TooLate(SocketAddr),
    /// It answers something else than 200.
    #[error("the gateway on {0} says that it is not alive")]
    NotAlive(SocketAddr),
}

/// Asks the gateway that listens on this address of this machine, with TLS or without, whether it is alive.
///
/// # Errors
/// If it is not.
pub async fn check(listen: SocketAddr, tls: bool) -> Result<(), HealthError> {
    let address = SocketAddr::new(reachable(listen.ip()), listen.port());
    let answer = timeout(LIMIT, ask(address)).await;
    let answer = answer.map_err(|_| HealthError::TooLate(address))?;
    let answer = answer.map_err(|e| HealthError::NoAnswer(address, e))?;
    let alive = if tls { ALIVE_WITH_TLS } else { ALIVE };
    if answer == alive {
        Ok(())
    } else {
        Err(HealthError::NotAlive(address))
    }
}

async fn ask(address: SocketAddr) -> io::Result<[u8; ALIVE.len()]> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(REQUEST).await?;
    let mut answer = [0; ALIVE.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Returns the address itself, or loopback for that of all interfaces.
fn reachable(listen: IpAddr) -> IpAddr {
    match listen {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn answering(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; REQUEST.len()];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(answer).await.unwrap();
        });
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)
    }

    #[tokio::test]
    async fn only_a_200_is_alive() {
        assert!(
            check(answering(b"HTTP/1.1 200 OK\r\n\r\n").await, false)
                .await
                .is_ok()
        );
        let refused = check(answering(b"HTTP/1.1 503 \r\n\r\n").await, false).await;
        assert!(matches!(refused, Err(HealthError::NotAlive(_))));
        let with_tls = check(answering(b"HTTP/1.1 400 Bad Request\r\n\r\n").await, true).await;
        assert!(with_tls.is_ok());
        let short = check(answering(b"HTTP").await, false).await;
        assert!(matches!(short, Err(HealthError::NoAnswer(..))));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        assert!(matches!(
            check(nobody, false).await,
            Err(HealthError::NoAnswer(..))
        ));
    }
}
