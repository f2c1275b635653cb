//! The tenants that were paused because their requests ended workers of a model.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;

/// The most tenants of a model that are counted; the one that was paused first makes room.
const MOST: usize = 64;
/// The time after a pause for which a tenant counts as one whose requests end workers, besides as long as the pause.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The tenants of a model that were paused, by name.
#[derive(Debug, Default)]
pub(super) struct PausedTenants(BTreeMap<String, PausedTenant>);

#[derive(Debug, Default)]
struct PausedTenant {
    pauses: u64,
    /// The time until which it is a finding.
    until: Time,
}

impl PausedTenants {
    pub(super) fn count(&mut self, now: Time, tenant: String, pause: Duration) {
        let paused = self.0.entry(tenant).or_default();
        paused.pauses += 1;
        paused.until = now + 2 * pause + REMEMBERED;
        let first = |(name, paused): (&String, &PausedTenant)| (paused.until, name.clone());
        if self.0.len() > MOST
            && let Some((_, first)) = self.0.iter().map(first).min()
        {
            self.0.remove(&first);
        }
    }

    /// Returns the pauses of each tenant.
    pub(super) fn pauses(&self) -> Vec<(String, u64)> {
        let tenants = self.0.iter();
        tenants
            .map(|(name, paused)| (name.clone(), paused.pauses))
            .collect()
    }

    /// Returns the tenants that were paused a short while ago.
    pub(super) fn present(&self, now: Time) -> Vec<String> {
        let present = self.0.iter().filter(|(_, paused)| now < paused.until);
        present.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_present_for_a_while_and_the_memory_is_bounded() {
        let mut paused = PausedTenants::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let pause = Duration::from_secs(5);
        paused.count(at(0), "key a".to_owned(), pause);
        paused.count(at(1), "key a".to_owned(), pause);
        assert_eq!(paused.pauses(), [("key a".to_owned(), 2)]);
        assert_eq!(paused.present(at(70)), ["key a"]);
        assert!(paused.present(at(71)).is_empty());
        for number in 0..1000 {
            paused.count(at(100 + number), format!("key {number}"), pause);
        }
        assert_eq!(paused.0.len(), MOST);
    }
}
