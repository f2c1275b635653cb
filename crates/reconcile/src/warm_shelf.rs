//! The memory of a node for warm weights: which programs leave it.

/// A program whose weights are in the memory of a node, and not on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmProgram<K> {
    /// The program.
    pub key: K,
    /// The time of its last use; any measure that grows.
    pub used: u64,
    /// The bytes of its weights.
    pub bytes: u64,
    /// False while a batch of it is under way.
    pub is_idle: bool,
}

/// Returns the programs that leave the memory so that the others have at most `limit` bytes: those first that were used least recently, and none that is
/// not idle.
pub fn leaving<K: Copy + Ord>(mut warm: Vec<WarmProgram<K>>, limit: u64) -> Vec<K> {
    let bytes = warm.iter().map(|program| u128::from(program.bytes));
    let mut total: u128 = bytes.sum();
    warm.sort_unstable_by_key(|program| (program.used, program.key));
    let mut leaving = Vec::new();
    for program in warm.iter().filter(|program| program.is_idle) {
        if total <= u128::from(limit) {
            break;
        }
        total -= u128::from(program.bytes);
        leaving.push(program.key);
    }
    leaving
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn warm(programs: &[(u64, u64, bool)]) -> Vec<WarmProgram<usize>> {
        let program = |(key, (used, bytes, is_idle)): (usize, &(u64, u64, bool))| WarmProgram {
            key,
            used: *used,
            bytes: *bytes,
            is_idle: *is_idle,
        };
        programs.iter().enumerate().map(program).collect()
    }

    #[test]
    fn the_least_recently_used_leave_first_and_those_in_use_stay() {
        let programs = [(3, 10, true), (1, 10, false), (2, 10, true), (2, 10, true)];
        assert_eq!(leaving(warm(&programs), 40), [] as [usize; 0]);
        assert_eq!(leaving(warm(&programs), 39), [2]);
        assert_eq!(leaving(warm(&programs), 20), [2, 3]);
        assert_eq!(leaving(warm(&programs), 0), [2, 3, 0]);
    }

    proptest! {
        #[test]
        fn no_more_leave_than_must_and_the_rest_fits_or_is_in_use(
            programs in vec((0..6_u64, prop_oneof![0..9_u64, Just(u64::MAX)], any::<bool>()), 0..12),
            limit in prop_oneof![0..40_u64, Just(u64::MAX)],
        ) {
            let all = warm(&programs);
            let gone = leaving(all.clone(), limit);
            let bytes = |stays: &dyn Fn(usize) -> bool| -> u128 {
                let kept = all.iter().filter(|program| stays(program.key));
                kept.map(|program| u128::from(program.bytes)).sum()
            };
            let rest = bytes(&|key| !gone.contains(&key));
            let fits = rest <= u128::from(limit);
            prop_assert!(fits || all.iter().all(|program| gone.contains(&program.key) || !program.is_idle));
            // Without the last of them it would not fit.
            if let Some((last, others)) = gone.split_last() {
                prop_assert!(bytes(&|key| key == *last || !others.contains(&key)) > u128::from(limit));
            }
            for key in &gone {
                prop_assert!(all[*key].is_idle);
                let older = all.iter().filter(|other| other.is_idle && other.used < all[*key].used);
                for other in older {
                    prop_assert!(gone.contains(&other.key), "{} was used before {key}", other.key);
                }
            }
        }
    }
}
