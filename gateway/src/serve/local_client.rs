//! The user that a client on this host runs as.
//!
//! The kernel lists the sockets of this host with their owners in `/proc/net/tcp` and `/proc/net/tcp6` (proc(5)). The client's end of a
//! connection over loopback is one of them.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
};

use tokio::{sync::OnceCell, task::spawn_blocking};

/// The client of a connection over loopback.
#[derive(Debug)]
pub(crate) struct LocalClient {
    /// The address of the client's end.
    client: SocketAddr,
    /// The address of the gateway's end.
    gateway: SocketAddr,
    user: OnceCell<Option<u32>>,
}

impl LocalClient {
    /// Returns the client of a connection; `None` if that does not come over loopback.
    pub(super) fn new(client: SocketAddr, gateway: SocketAddr) -> Option<Self> {
        let [client, gateway] = [client, gateway].map(canonical);
        client.ip().is_loopback().then(|| Self {
            client,
            gateway,
            user: OnceCell::new(),
        })
    }

    /// Returns the user's number, which is looked up once; `None` if the kernel does not tell, as for a client in another network
    /// namespace.
    pub(crate) async fn user(&self) -> Option<u32> {
        let (client, gateway) = (self.client, self.gateway);
        let look_up = || async move {
            let found = spawn_blocking(move || socket_owner(client, gateway)).await;
            found.ok().and_then(Result::ok).flatten()
        };
        *self.user.get_or_init(look_up).await
    }
}

/// Returns an IPv4 address in its own form where it is mapped into IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the owner of the socket with these ends. A listener for both families has the client's end in either table.
fn socket_owner(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    if local.is_ipv4() {
        let table = fs::read_to_string("/proc/self/net/tcp")?;
        if let Some(owner) = owner_in(&table, local, remote) {
            return Ok(Some(owner));
        }
    }
    let table = fs::read_to_string("/proc/self/net/tcp6")?;
    Ok(owner_in(&table, mapped(local), mapped(remote)))
}

/// The state of a connection whose ends both exist, in such a table. Linux before 6.17 names root as the owner of others.
const ESTABLISHED: &str = "01";

/// Returns the owner of an established socket in such a table.
fn owner_in(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let (local, remote) = (table_form(local), table_form(remote));
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_it = fields.next()? == local && fields.next()? == remote;
        let is_it = is_it && fields.next()? == ESTABLISHED;
        // Queues, timer and retransmissions lie between the state and the owner.
        is_it.then(|| fields.nth(3)?.parse().ok())?
    })
}

/// Returns an address as the tables have it: words of 32 bits in the machine's order, in hexadecimal.
fn table_form(address: SocketAddr) -> String {
    let hex = |word: &[u8]| {
        let word = u32::from_ne_bytes(word.try_into().expect("chunks of four bytes"));
        format!("{word:08X}")
    };
    let ip: String = match address.ip() {
        IpAddr::V4(ip) => hex(&ip.octets()),
        IpAddr::V6(ip) => ip.octets().chunks_exact(4).map(hex).collect(),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_owner_of_a_socket_is_found_over_either_family() {
        let user = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue; // a host without IPv6
            };
            let port = listener.local_addr().unwrap().port();
            let targets: &[&str] = match address {
                "127.0.0.1:0" => &["127.0.0.1"],
                "[::1]:0" => &["::1"],
                _ => &["127.0.0.1", "::1"],
            };
            for target in targets {
                let client = TcpStream::connect((*target, port)).unwrap();
                let (accepted, peer) = listener.accept().unwrap();
                let found = LocalClient::new(peer, accepted.local_addr().unwrap()).unwrap();
                assert_eq!(
                    socket_owner(found.client, found.gateway).unwrap(),
                    Some(user),
                    "{address} {target}"
                );
                drop(client);
            }
        }
    }

    #[test]
    fn only_clients_over_loopback_are_local() {
        let local = |client: &str| {
            LocalClient::new(client.parse().unwrap(), "127.0.0.1:80".parse().unwrap()).is_some()
        };
        assert!(local("127.0.0.9:1") && local("[::1]:1") && local("[::ffff:127.0.0.1]:1"));
        assert!(!local("192.0.2.1:1") && !local("[2001:db8::1]:1"));
    }

    #[test]
    fn a_socket_that_is_not_there_has_no_owner() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 1 1\n";
        let owner = |local: &str, remote: &str| {
            owner_in(table, local.parse().unwrap(), remote.parse().unwrap())
        };
        if cfg!(target_endian = "little") {
            assert_eq!(owner("127.0.0.1:8080", "127.0.0.1:50000"), Some(1000));
        }
        assert_eq!(owner("127.0.0.1:50000", "127.0.0.1:8080"), None);
    }

    #[test]
    fn a_socket_that_is_being_closed_has_no_owner_whatever_the_table_says() {
        for state in ["02", "04", "05", "06", "07", "08"] {
            let table = format!(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                 0: {} {} {state} 00000000:00000000 00:00000000 00000000     0        0 0 1\n",
                table_form("127.0.0.1:8080".parse().unwrap()),
                table_form("127.0.0.1:50000".parse().unwrap()),
            );
            let [local, remote] = ["127.0.0.1:8080", "127.0.0.1:50000"].map(|a| a.parse().unwrap());
            assert_eq!(owner_in(&table, local, remote), None, "{state}");
            let open = table.replace(&format!(" {state} "), " 01 ");
            assert_eq!(owner_in(&open, local, remote), Some(0));
        }
    }
}
