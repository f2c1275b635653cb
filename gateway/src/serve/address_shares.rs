//! The connections of each address: where all places are taken, the address with the most of them gives one to an address with fewer.
//!
//! Only a connection that does nothing gives its place up: the one that has been silent for the longest, or else one whose client has been sending
//! a body for some time. One whose request is being answered never does. Nothing is limited while there are places, so that a proxy may have nearly
//! all of them.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Waiting};
use crate::ip_network::client_network;

/// The fewest addresses for which those without a connection are looked for.
const MIN_ADDRESSES: usize = 64;
/// The time after which a client that still sends a body may lose its connection to an address with fewer.
const SLOW_BODY: Duration = Duration::from_secs(1);

/// The connections of a listener by the address that they come from; of IPv6 by the network of 64 bits.
#[derive(Default)]
pub(super) struct AddressShares {
    shares: BTreeMap<IpAddr, Share>,
    /// The number of addresses at which those without a connection are removed.
    sweep_at: usize,
}

/// The connections of an address.
#[derive(Default)]
struct Share {
    /// A clone is held by each connection.
    count: Arc<()>,
    /// The connections, the oldest first. Some may have ended.
    connections: VecDeque<(Arc<Activity>, CancellationToken)>,
}

/// A connection's part in the share of its address, as long as it is there.
pub(super) struct ShareMember {
    /// The activity of the connection.
    pub(super) activity: Arc<Activity>,
    /// A token that is cancelled when the connection has to give its place up.
    pub(super) place: CancellationToken,
    _count: Arc<()>,
}

impl AddressShares {
    /// Adds a connection.
    pub(super) fn add(&mut self, address: IpAddr) -> ShareMember {
        if self.shares.len() >= self.sweep_at {
            self.shares.retain(|_, share| share.count() > 0);
            self.sweep_at = (2 * self.shares.len()).max(MIN_ADDRESSES);
        }
        let share = self.shares.entry(client_network(address)).or_default();
        if share.connections.len() == share.connections.capacity() {
            share.connections.retain(|(activity, _)| is_there(activity));
        }
        let activity = Arc::new(Activity::begin());
        let place = CancellationToken::new();
        share
            .connections
            .push_back((Arc::clone(&activity), place.clone()));
        ShareMember {
            activity,
            place,
            _count: Arc::clone(&share.count),
        }
    }

    /// Has a connection of the address with the most give its place up to a further one of this address. Returns false if none has to.
    pub(super) fn give_way_to(&mut self, address: IpAddr, now: Instant) -> bool {
        let own = self
            .shares
            .get(&client_network(address))
            .map_or(0, Share::count);
        let most = self.shares.values_mut().max_by_key(|share| share.count());
        let most = most.filter(|share| share.count() > own + 1);
        most.is_some_and(|share| share.end_one(now))
    }
}

impl Share {
    /// Returns the number of connections.
    fn count(&self) -> usize {
        Arc::strong_count(&self.count) - 1
    }

    /// Ends the connection that does the least; returns false if all are answered.
    fn end_one(&mut self, now: Instant) -> bool {
        self.connections.retain(|(activity, _)| is_there(activity));
        let connections = self.connections.iter().enumerate();
        let waiting = connections.filter_map(|(index, (activity, _))| {
            let rank = match activity.waiting()? {
                Waiting::Head(since) => (0, since),
                Waiting::Body(since) if now.saturating_duration_since(since) >= SLOW_BODY => {
                    (1, since)
                }
                Waiting::Body(_) => return None,
            };
            Some((rank, index))
        });
        let Some((_, index)) = waiting.min() else {
            return false;
        };
        let ended = self.connections.remove(index);
        ended.is_some_and(|(_, place)| {
            place.cancel();
            true
        })
    }
}

/// Returns true if the connection has the other one.
fn is_there(activity: &Arc<Activity>) -> bool {
    Arc::strong_count(activity) > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: u8) -> IpAddr {
        [10, 0, 0, host].into()
    }

    #[tokio::test]
    async fn the_address_with_the_most_gives_its_longest_silent_connection() {
        let mut shares = AddressShares::default();
        let proxy: Vec<_> = (0..4).map(|_| shares.add(address(1))).collect();
        proxy[0].activity.begin_request();
        let other = shares.add(address(2));
        let now = Instant::now();
        assert!(
            !shares.give_way_to(address(1), now),
            "it has the most itself"
        );
        assert!(shares.give_way_to(address(2), now));
        assert!(proxy[1].place.is_cancelled());
        let mut proxy = proxy.into_iter();
        let [answered, ended, second, third] = [(); 4].map(|()| proxy.next().unwrap());
        drop(ended);
        assert!(shares.give_way_to(address(3), now));
        assert!(second.place.is_cancelled() && !other.place.is_cancelled());
        drop(second);
        assert!(!shares.give_way_to(address(2), now), "they have as many");
        third.activity.begin_request();
        assert!(!shares.give_way_to(address(3), now), "all are answered");
        drop((answered, third));
    }

    #[tokio::test]
    async fn a_body_that_comes_slowly_gives_way_after_those_that_are_silent() {
        let mut shares = AddressShares::default();
        let held: Vec<_> = (0..3).map(|_| shares.add(address(1))).collect();
        for member in &held[..2] {
            member.activity.begin_body();
        }
        let now = Instant::now();
        assert!(shares.give_way_to(address(2), now));
        assert!(held[2].place.is_cancelled());
        assert!(
            !shares.give_way_to(address(2), now),
            "the bodies have just begun"
        );
        assert!(shares.give_way_to(address(2), now + 2 * SLOW_BODY));
        assert!(held[0].place.is_cancelled() && !held[1].place.is_cancelled());
    }

    #[test]
    fn connections_that_have_ended_take_no_memory() {
        let mut shares = AddressShares::default();
        let held: Vec<_> = (0..100).map(|_| shares.add(address(1))).collect();
        for host in 0..10_000_u32 {
            shares.add(address(1));
            shares.add(IpAddr::V4(host.into()));
        }
        assert!(shares.shares.len() <= 2 * MIN_ADDRESSES);
        assert!(shares.shares[&address(1)].connections.len() < 1000);
        drop(held);
    }
}
