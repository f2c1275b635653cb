//! The check that the workers that an agent names are on its own machine.
//!
//! The gateway connects to every address that an agent reports. Without the check, whoever has the token of one node could have the
//! gateway connect to any port that it reaches, and requests could be answered by somebody else.

use std::net::IpAddr;

use packhorse_api::agent::{AgentStatus, InvalidField};
use packhorse_service::is_of_this_machine;

use crate::ip_network::IpNetwork;

/// Checks the addresses in a status that came from `peer`. A worker is at the address that its agent talks from, anywhere on this
/// machine if the agent is on it, or in one of the `networks`.
///
/// # Errors
/// The first address that is not the node's.
pub(super) fn check(
    status: &AgentStatus,
    peer: IpAddr,
    networks: &[IpNetwork],
) -> Result<(), InvalidField> {
    for (i, replica) in status.replicas.iter().enumerate() {
        let Some(address) = replica.address else {
            continue;
        };
        if !belongs(address.ip(), peer, networks, is_of_this_machine) {
            return Err(InvalidField {
                field: format!("replicas[{i}].address"),
                problem: format!(
                    "{address} is not an address of the node, whose agent talks from {peer}; a node whose workers listen on \
                     another network needs the gateway's flag --worker-networks"
                ),
            });
        }
    }
    Ok(())
}

fn belongs(
    address: IpAddr,
    peer: IpAddr,
    networks: &[IpNetwork],
    is_here: impl Fn(IpAddr) -> bool,
) -> bool {
    let (address, peer) = (address.to_canonical(), peer.to_canonical());
    address == peer
        || networks.iter().any(|network| network.contains(address))
        || (is_here(peer) && is_here(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_where_its_agent_is() {
        // This machine has the address 10.0.0.1.
        let here = |ip: IpAddr| ip.is_loopback() || ip.to_string() == "10.0.0.1";
        let networks = ["10.9.0.0/16".parse().unwrap()];
        for (address, peer, expected) in [
            ("10.0.0.2", "10.0.0.2", true),
            ("::ffff:10.0.0.2", "10.0.0.2", true),
            ("10.0.0.3", "10.0.0.2", false),
            ("127.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.9.4.4", "10.0.0.2", true),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "::1", true),
            ("10.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "10.0.0.1", true),
            ("10.0.0.2", "127.0.0.1", false),
            ("169.254.169.254", "127.0.0.1", false),
        ] {
            let parse = |text: &str| text.parse::<IpAddr>().unwrap();
            let belongs = belongs(parse(address), parse(peer), &networks, here);
            assert_eq!(belongs, expected, "{address} of an agent at {peer}");
        }
    }

    #[test]
    fn only_an_address_that_this_machine_has_is_its_own() {
        assert!(is_of_this_machine("127.0.0.1".parse().unwrap()));
        // An address of documentation, which no machine has.
        assert!(!is_of_this_machine("192.0.2.1".parse().unwrap()));
    }
}
