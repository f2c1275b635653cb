//! Networks of addresses, as `ADDRESS/PREFIX`, and those of one client.

use std::{
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

/// The addresses whose first bits are those of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix: u32,
}

/// A text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected ADDRESS/PREFIX, such as 10.1.0.0/16, or one address")]
pub struct IpNetworkError;

impl IpNetwork {
    /// Returns true if the network contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address| match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        let ((ours, ours_len), (theirs, theirs_len)) = (bits(self.address), bits(address));
        // A shift by all 128 bits, which a prefix of 0 needs, overflows.
        let differing = (ours ^ theirs).checked_shr(128 - self.prefix).unwrap_or(0);
        ours_len == theirs_len && differing == 0
    }
}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<Self, IpNetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| IpNetworkError)?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(longest), str::parse);
        let prefix = prefix.map_err(|_| IpNetworkError)?;
        if prefix > longest {
            return Err(IpNetworkError);
        }
        Ok(Self { address, prefix })
    }
}

/// Returns what one client has of addresses: one of IPv4, a network of 64 bits of IPv6.
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_the_addresses_with_its_prefix() {
        for (network, address, contained) in [
            ("10.1.0.0/16", "10.1.255.7", true),
            ("10.1.0.0/16", "10.2.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:1::9", true),
            ("2001:db8::/32", "2001:db9::9", false),
            ("::/0", "2001:db9::9", true),
        ] {
            let parsed: IpNetwork = network.parse().unwrap();
            assert_eq!(
                parsed.contains(address.parse().unwrap()),
                contained,
                "{network} {address}"
            );
        }
        for bad in [
            "",
            "10.1.0.0/33",
            "10.1.0.0/-1",
            "10.1/16",
            "host/8",
            "::/129",
        ] {
            assert_eq!(bad.parse::<IpNetwork>(), Err(IpNetworkError), "{bad}");
        }
    }
}
