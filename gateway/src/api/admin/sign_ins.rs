//! The limit of refused sign-ins of a source, and what the audit log keeps of them.
//!
//! A client that guesses tokens gets a few answers, each after a pause, and then none for the rest of a minute, whatever it sends. The audit log says when
//! that began and when it was stopped, and no more: it is bounded, and must not lose what admins did.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::ip_network::client_network;

/// The pause before a refusal is told.
pub(super) const PAUSE: Duration = Duration::from_millis(250);
/// The most refusals of a source within [`WINDOW_MS`].
const MAX_REFUSED: u32 = 10;
/// The time for which a source's refusals count, in milliseconds.
const WINDOW_MS: i64 = 60_000;
/// The most sources that are remembered. The one whose refusals began first is forgotten for another.
const MAX_SOURCES: usize = 1024;
/// The most entries in the audit log within [`WINDOW_MS`], for all sources.
const MAX_RECORDED: u32 = 60;

/// The refused sign-ins of late. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct SignIns(Arc<Mutex<Refusals>>);

#[derive(Debug, Default)]
struct Refusals {
    by_source: BTreeMap<IpAddr, Refused>,
    recorded: Refused,
}

/// The refusals since a time.
#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    since_ms: i64,
    count: u32,
}

impl Refused {
    /// Returns the refusals that still count at this Unix time.
    fn at(self, now_ms: i64) -> Self {
        let age = now_ms.saturating_sub(self.since_ms);
        if (0..WINDOW_MS).contains(&age) {
            self
        } else {
            Self {
                since_ms: now_ms,
                count: 0,
            }
        }
    }
}

impl SignIns {
    /// Returns the time after which a source may try again; `None` if it may now.
    pub(super) fn blocked(&self, source: IpAddr, now_ms: i64) -> Option<Duration> {
        let refusals = self.lock();
        let refused = refusals.by_source.get(&client_network(source))?.at(now_ms);
        let left = refused.since_ms + WINDOW_MS - now_ms;
        (refused.count >= MAX_REFUSED)
            .then(|| Duration::from_millis(u64::try_from(left).unwrap_or_default()))
    }

    /// Counts a refusal. Returns the number of them if the audit log shall have it.
    pub(super) fn refused(&self, source: IpAddr, now_ms: i64) -> Option<u32> {
        let mut refusals = self.lock();
        let source = client_network(source);
        let sources = &mut refusals.by_source;
        if sources.len() >= MAX_SOURCES && !sources.contains_key(&source) {
            let oldest = sources.iter().min_by_key(|(_, refused)| refused.since_ms);
            let oldest = oldest.map(|(source, _)| *source);
            oldest.and_then(|oldest| sources.remove(&oldest));
        }
        let refused = sources.entry(source).or_default();
        *refused = refused.at(now_ms);
        refused.count += 1;
        let count = refused.count;
        if count != 1 && count != MAX_REFUSED {
            return None;
        }
        refusals.recorded = refusals.recorded.at(now_ms);
        refusals.recorded.count += 1;
        (refusals.recorded.count <= MAX_RECORDED).then_some(count)
    }

    fn lock(&self) -> MutexGuard<'_, Refusals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    const NOW: i64 = 1_000_000;

    fn source(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn a_source_that_guesses_is_stopped_for_the_rest_of_its_minute_and_no_other_is() {
        let sign_ins = SignIns::default();
        let told: Vec<_> = (0..12)
            .map(|n| sign_ins.refused(source(1), NOW + n))
            .collect();
        let mut expected = vec![None; 12];
        (expected[0], expected[9]) = (Some(1), Some(10));
        assert_eq!(told, expected);
        let left = Duration::from_secs(50);
        assert_eq!(sign_ins.blocked(source(1), NOW + 10_000), Some(left));
        assert_eq!(sign_ins.blocked(source(2), NOW + 10_000), None);
        assert_eq!(sign_ins.blocked(source(1), NOW + WINDOW_MS), None);
        assert_eq!(sign_ins.refused(source(1), NOW + WINDOW_MS), Some(1));
        // A clock that was set back begins a new minute.
        assert_eq!(sign_ins.blocked(source(1), NOW - 1), None);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let sign_ins = SignIns::default();
        for host in 0..u64::from(MAX_REFUSED) {
            let address = Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(host));
            sign_ins.refused(address.into(), NOW);
        }
        assert!(
            sign_ins
                .blocked("2001:db8::ffff".parse().unwrap(), NOW)
                .is_some()
        );
        assert!(
            sign_ins
                .blocked("2001:db8:0:1::".parse().unwrap(), NOW)
                .is_none()
        );
    }

    #[test]
    fn sources_and_entries_of_the_audit_log_are_bounded() {
        let sign_ins = SignIns::default();
        let told = (0..5000).filter(|n| sign_ins.refused(source(*n), NOW).is_some());
        assert_eq!(told.count(), MAX_RECORDED as usize);
        assert_eq!(sign_ins.lock().by_source.len(), MAX_SOURCES);
    }
}
