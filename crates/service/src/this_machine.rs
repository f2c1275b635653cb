//! The addresses of this machine.

use std::net::{IpAddr, UdpSocket};

/// Returns true if the address is one of this machine's: only then can a socket be bound to it.
pub fn is_of_this_machine(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_here_and_an_address_for_documentation_is_not() {
        let is_here = |address: &str| is_of_this_machine(address.parse().unwrap());
        assert!(is_here("127.0.0.1") && is_here("::1"));
        assert!(!is_here("192.0.2.1"));
    }
}
