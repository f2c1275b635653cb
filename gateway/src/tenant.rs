//! The tenants: who sends a request, for the serving engine and for people.
//!
//! The tenant of a request is its API key. Without keys it is the address that the request comes from: all clients of the gateway's host, or behind one
//! proxy, are one tenant, and so are those of one IPv6 network of 63 bits.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{extract::ConnectInfo, http::Extensions};
use packhorse_serving::TenantKey;

/// The tenant of clients of this host that have no key, and of those whose address is unknown.
const LOCAL: TenantKey = TenantKey(0);
/// The bit that the numbers of IPv4 addresses have, and those of keys do not.
const V4: u64 = 1 << 62;
/// The bit that the numbers of IPv6 networks have.
const V6: u64 = 1 << 63;

/// The name of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TenantName {
    /// The API key with this id.
    Key(Arc<str>),
    /// The clients without a key at this address.
    Address(IpAddr),
    /// The clients without a key of this host.
    Local,
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(id) => write!(f, "key {id}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Local => f.write_str("clients of this host"),
        }
    }
}

/// Returns the number of the tenant that sent a request with these extensions.
pub(crate) fn tenant_of(extensions: &Extensions) -> TenantKey {
    let key = extensions.get::<TenantKey>().copied();
    key.unwrap_or_else(|| address_of(extensions).map_or(LOCAL, of_address))
}

/// Returns the name of the tenant that sent a request with these extensions.
pub(crate) fn tenant_name_of(extensions: &Extensions) -> TenantName {
    let key = extensions.get::<TenantName>().cloned();
    key.unwrap_or_else(|| address_of(extensions).map_or(TenantName::Local, TenantName::Address))
}

/// Returns the address of a client on another host.
fn address_of(extensions: &Extensions) -> Option<IpAddr> {
    let ConnectInfo(address) = extensions.get::<ConnectInfo<SocketAddr>>()?;
    let address = address.ip().to_canonical();
    (!address.is_loopback()).then_some(address)
}

fn of_address(address: IpAddr) -> TenantKey {
    match address {
        IpAddr::V4(address) => TenantKey(V4 | u64::from(u32::from(address))),
        IpAddr::V6(address) => TenantKey(V6 | (u128::from(address) >> 65) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo::<SocketAddr>(address.parse().unwrap()));
        extensions
    }

    #[test]
    fn clients_without_a_key_are_told_apart_by_their_address() {
        let tenant = |address| tenant_of(&from(address));
        assert_eq!(tenant("10.0.0.1:5"), tenant("10.0.0.1:6"));
        assert_ne!(tenant("10.0.0.1:5"), tenant("10.0.0.2:5"));
        assert_eq!(tenant("10.0.0.1:5"), tenant("[::ffff:10.0.0.1]:5"));
        assert_eq!(tenant("[2001:db8:0:2::1]:5"), tenant("[2001:db8:0:2::9]:5"));
        assert_ne!(tenant("[2001:db8:0:2::1]:5"), tenant("[2001:db8:0:4::1]:5"));
        assert_eq!(tenant("127.0.0.1:5"), tenant("[::1]:5"));
        assert_eq!(tenant_of(&Extensions::new()), LOCAL);
        let name = tenant_name_of(&from("10.0.0.1:5"));
        assert_eq!(name.to_string(), "address 10.0.0.1");
    }

    #[test]
    fn a_key_is_a_tenant_wherever_it_is_used() {
        let mut extensions = from("10.0.0.1:5");
        extensions.insert(TenantKey(7));
        extensions.insert(TenantName::Key("team-a".into()));
        assert_eq!(tenant_of(&extensions), TenantKey(7));
        assert_eq!(tenant_name_of(&extensions).to_string(), "key team-a");
    }
}
