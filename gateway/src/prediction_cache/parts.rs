//! The parts of the cache's memory that tenants have.
//!
//! The memory has equal parts. A tenant that needs one gets a free one, else that of a tenant that has not asked for a while, else one of the tenant
//! with the most, as long as that has more. So a tenant alone has all parts, and none takes more than its fair share from others.
//! Within its parts a tenant's answers give way by the policy of `quick_cache`, which is S3-FIFO's: what is asked once does not displace what is asked
//! again and again.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;
use packhorse_serving::TenantKey;
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, unsync::Cache};

use super::{kept_outputs::KeptOutputs, key::PredictionKey};

/// The number of parts.
const PARTS: u64 = 32;
/// The largest answer, as a fraction of a part.
const ANSWERS_OF_PART: u64 = 2;
/// The time after which a tenant that has not asked gives its parts to others.
const IDLE: Duration = Duration::from_mins(1);
/// The bytes of an answer by which the number of answers of a part is guessed: the policy remembers half as many that gave way.
const USUAL_ANSWER: u64 = 4 << 10;
/// The fraction of a part that is left for what the policy remembers.
const LEFT_OF_PART: u64 = 32;

/// The answers of all tenants.
#[derive(Debug)]
pub(super) struct TenantParts {
    part_bytes: u64,
    free: u64,
    tenants: BTreeMap<TenantKey, Tenant>,
}

struct Tenant {
    answers: Cache<PredictionKey, KeptOutputs, ByBytes>,
    parts: u64,
    /// The last time that it asked.
    asked: Time,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<PredictionKey, KeptOutputs> for ByBytes {
    fn weight(&self, _: &PredictionKey, outputs: &KeptOutputs) -> u64 {
        outputs.bytes()
    }
}

impl TenantParts {
    /// Creates the parts of so many bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            part_bytes: limit / PARTS,
            free: PARTS,
            tenants: BTreeMap::new(),
        }
    }

    /// Returns the bytes of all answers.
    pub(super) fn bytes(&self) -> u64 {
        self.tenants
            .values()
            .map(|tenant| tenant.answers.weight())
            .sum()
    }

    /// Returns true if an answer of so many bytes is not too large.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        bytes <= self.part_bytes / ANSWERS_OF_PART
    }

    /// Returns a tenant's answer.
    pub(super) fn get(
        &mut self,
        now: Time,
        tenant: TenantKey,
        key: &PredictionKey,
    ) -> Option<KeptOutputs> {
        let tenant = self.tenants.get_mut(&tenant)?;
        tenant.asked = now;
        tenant.answers.get(key).cloned()
    }

    /// Adds a tenant's answer, unless it is too large. Returns the number of answers that gave way.
    pub(super) fn insert(
        &mut self,
        now: Time,
        tenant: TenantKey,
        key: PredictionKey,
        outputs: KeptOutputs,
    ) -> u64 {
        if !self.takes(outputs.bytes()) {
            return 0;
        }
        let mut evicted = 0;
        while self.is_short(tenant, outputs.bytes()) {
            let Some(displaced) = self.grow(now, tenant) else {
                break;
            };
            evicted += displaced;
        }
        // With no part at all it has found no giver, which cannot be.
        let Some(tenant) = self.tenants.get_mut(&tenant) else {
            return evicted;
        };
        tenant.asked = now;
        let is_new = !tenant.answers.contains_key(&key);
        evicted + tenant.change(is_new, |answers| answers.insert(key, outputs))
    }

    /// Returns true if a tenant's parts have no room for so many bytes.
    fn is_short(&self, tenant: TenantKey, bytes: u64) -> bool {
        let tenant = self.tenants.get(&tenant);
        tenant.is_none_or(|tenant| tenant.answers.weight() + bytes > tenant.answers.capacity())
    }

    /// Gives a tenant one part more. Returns the number of answers that gave way for it; `None` if no other tenant has to give one.
    fn grow(&mut self, now: Time, tenant: TenantKey) -> Option<u64> {
        let mut evicted = 0;
        if self.free > 0 {
            self.free -= 1;
        } else {
            let giver = self.giver(now, tenant)?;
            let other = self.tenants.get_mut(&giver)?;
            evicted = other.resize(other.parts - 1, self.part_bytes);
            if other.parts == 0 {
                self.tenants.remove(&giver);
            }
        }
        let part_bytes = self.part_bytes;
        let grown = self
            .tenants
            .entry(tenant)
            .or_insert_with(|| Tenant::new(now, part_bytes));
        Some(evicted + grown.resize(grown.parts + 1, part_bytes))
    }

    /// Returns the tenant that gives a part to another one.
    fn giver(&self, now: Time, to: TenantKey) -> Option<TenantKey> {
        let own = self.tenants.get(&to).map_or(0, |tenant| tenant.parts);
        let others = || self.tenants.iter().filter(|(key, _)| **key != to);
        let longest_silent = others().min_by_key(|(_, tenant)| tenant.asked);
        let idle = longest_silent.filter(|(_, tenant)| now.saturating_since(tenant.asked) >= IDLE);
        let richest = || {
            let richest = others().max_by_key(|(_, tenant)| tenant.parts);
            richest.filter(|(_, tenant)| tenant.parts > own + 1)
        };
        // Who has nothing gets a part from whoever has been silent for longest, where all have one.
        let poor = || longest_silent.filter(|_| own == 0);
        idle.or_else(richest).or_else(poor).map(|(key, _)| *key)
    }
}

impl Tenant {
    /// Creates a tenant without parts, which has the room of one until it is resized.
    fn new(now: Time, part_bytes: u64) -> Self {
        let answers = usize::try_from(part_bytes / USUAL_ANSWER).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(answers)
            .weight_capacity(room(1, part_bytes))
            .build();
        let options = options.expect("all of them are given");
        Self {
            answers: Cache::with_options(
                options,
                ByBytes,
                DefaultHashBuilder::default(),
                quick_cache::unsync::DefaultLifecycle::default(),
            ),
            parts: 0,
            asked: now,
        }
    }

    /// Gives it so many parts. Returns the number of answers that gave way.
    fn resize(&mut self, parts: u64, part_bytes: u64) -> u64 {
        self.parts = parts;
        if parts == 0 {
            return self.answers.len() as u64;
        }
        self.change(false, |answers| {
            answers.set_capacity(room(parts, part_bytes));
        })
    }

    /// Changes the answers. Returns the number of those that gave way.
    fn change(
        &mut self,
        adds_one: bool,
        change: impl FnOnce(&mut Cache<PredictionKey, KeptOutputs, ByBytes>),
    ) -> u64 {
        let before = self.answers.len() + usize::from(adds_one);
        change(&mut self.answers);
        (before - self.answers.len()) as u64
    }
}

/// Returns the bytes of answers that so many parts have room for.
fn room(parts: u64, part_bytes: u64) -> u64 {
    parts * (part_bytes - part_bytes / LEFT_OF_PART)
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenant")
            .field("answers", &self.answers.len())
            .field("parts", &self.parts)
            .field("asked", &self.asked)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use packhorse_cluster::{Datatype, Shape};
    use packhorse_protocol::Tensor;
    use packhorse_serving::ModelKey;
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::prediction_cache::key::InputDigest;

    const LIMIT: u64 = 1 << 20;
    const ONE: TenantKey = TenantKey(1);
    const OTHER: TenantKey = TenantKey(2);

    fn key(model: u32, number: u32) -> PredictionKey {
        let shape = Shape::new(&[1]).unwrap();
        let input = Tensor::from_values("x", shape, &[number]).unwrap();
        assert_eq!(input.datatype(), Datatype::Uint32);
        PredictionKey {
            model: ModelKey(model),
            inputs: InputDigest::of(&[input]),
        }
    }

    fn outputs(bytes: usize) -> KeptOutputs {
        let (shape, data) = (
            Shape::new(&[bytes.cast_signed() as i64]).unwrap(),
            vec![7; bytes].into(),
        );
        KeptOutputs::copy([(&shape, &data)].into_iter())
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn fill(parts: &mut TenantParts, now: Time, tenant: TenantKey, numbers: std::ops::Range<u32>) {
        for number in numbers {
            parts.insert(now, tenant, key(0, number), outputs(2000));
        }
    }

    fn has(parts: &mut TenantParts, now: Time, tenant: TenantKey, number: u32) -> bool {
        parts.get(now, tenant, &key(0, number)).is_some()
    }

    #[test]
    fn an_answer_is_for_its_tenant_its_model_and_its_inputs() {
        let mut parts = TenantParts::new(LIMIT);
        let kept = outputs(100);
        parts.insert(at(0), ONE, key(0, 1), kept.clone());
        assert_eq!(parts.get(at(0), ONE, &key(0, 1)), Some(kept));
        assert_eq!(parts.get(at(0), ONE, &key(0, 2)), None);
        // A program in place of another has another number.
        assert_eq!(parts.get(at(0), ONE, &key(1, 1)), None);
        assert_eq!(parts.get(at(0), OTHER, &key(0, 1)), None);
    }

    #[test]
    fn an_answer_has_at_most_half_a_part_and_nothing_is_kept_without_memory() {
        let largest = (LIMIT / PARTS / ANSWERS_OF_PART) as usize;
        let mut parts = TenantParts::new(LIMIT);
        parts.insert(at(0), ONE, key(0, 1), outputs(largest));
        assert_eq!(parts.bytes(), 0);
        parts.insert(at(0), ONE, key(0, 1), outputs(largest - 600));
        assert!(parts.bytes() > 0);
        let mut none = TenantParts::new(0);
        none.insert(at(0), ONE, key(0, 1), outputs(0));
        assert_eq!(none.bytes(), 0);
    }

    #[test]
    fn what_is_asked_again_survives_what_is_asked_once() {
        let mut parts = TenantParts::new(LIMIT);
        fill(&mut parts, at(0), ONE, 0..20);
        for _ in 0..3 {
            assert!((0..20).all(|number| has(&mut parts, at(0), ONE, number)));
        }
        fill(&mut parts, at(0), ONE, 1000..9000);
        let left = (0..20).filter(|number| has(&mut parts, at(0), ONE, *number));
        assert_eq!(left.count(), 20);
    }

    #[test]
    fn a_tenant_alone_has_all_the_memory_and_one_that_floods_takes_no_more_than_its_share() {
        let mut parts = TenantParts::new(LIMIT);
        fill(&mut parts, at(0), ONE, 0..1000);
        let alone = parts.tenants[&ONE].answers.weight();
        assert!(alone > LIMIT * 9 / 10, "{alone}");
        for _ in 0..3 {
            fill(&mut parts, at(1), OTHER, 0..5000);
        }
        let [one, other] = [ONE, OTHER].map(|tenant| parts.tenants[&tenant].answers.weight());
        assert!(
            one > LIMIT * 4 / 10 && other > LIMIT * 4 / 10,
            "{one} {other}"
        );
        // A third has a third.
        fill(&mut parts, at(2), TenantKey(3), 0..5000);
        for tenant in parts.tenants.values() {
            assert!(tenant.answers.weight() > LIMIT / 4, "{tenant:?}");
        }
    }

    #[test]
    fn a_silent_tenant_gives_its_parts_to_those_that_ask() {
        let mut parts = TenantParts::new(LIMIT);
        fill(&mut parts, at(0), ONE, 0..1000);
        fill(&mut parts, at(61), OTHER, 0..1000);
        assert!(!parts.tenants.contains_key(&ONE));
        assert!(parts.tenants[&OTHER].answers.weight() > LIMIT * 9 / 10);
    }

    #[test]
    fn more_tenants_than_parts_have_one_each_by_turns() {
        let mut parts = TenantParts::new(LIMIT);
        let tenants = 2 * PARTS;
        for tenant in 0..tenants {
            fill(&mut parts, at(tenant / 10), TenantKey(tenant), 0..100);
        }
        assert_eq!(parts.tenants.len() as u64, PARTS);
        assert!(parts.tenants.contains_key(&TenantKey(tenants - 1)));
        assert!(!parts.tenants.contains_key(&TenantKey(0)));
    }

    #[test]
    fn what_is_counted_is_what_is_allocated_and_stays_below_the_limit() {
        let limit = 8 << 20;
        for size in [0, 4, 40, 1536, 4000, 60_000] {
            let mut parts = TenantParts::new(limit);
            let mut allocated = 0;
            // It is full after the first.
            for model in 0..3 {
                let inserted = allocation_counter::measure(|| {
                    for number in 0..(limit / (size as u64 + 500) * 2) as u32 {
                        parts.insert(at(0), ONE, key(model, number), outputs(size));
                    }
                });
                allocated += inserted.bytes_current;
                let counted = parts.bytes();
                assert!(
                    counted <= limit && allocated <= limit.cast_signed(),
                    "{size}: {counted} {allocated}"
                );
                assert!(counted > limit * 9 / 10, "{size}: {counted}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_load_stays_below_the_limit(
            acts in vec((0_u64..40, 0_u32..3, 0_u32..30, 0_usize..20_000, 0_u64..30), 1..400)
        ) {
            let mut parts = TenantParts::new(LIMIT);
            let mut now = 0;
            let (mut inserted, mut evicted) = (0, 0);
            for (tenant, model, number, size, seconds) in acts {
                now += seconds / 10;
                let (tenant, key) = (TenantKey(tenant), key(model, number));
                let outputs = outputs(size);
                let is_new = parts.get(at(now), tenant, &key).is_none();
                inserted += u64::from(is_new && parts.takes(outputs.bytes()));
                evicted += parts.insert(at(now), tenant, key, outputs.clone());
                prop_assert!(parts.bytes() <= LIMIT);
                let given: u64 = parts.tenants.values().map(|tenant| tenant.parts).sum();
                prop_assert_eq!(given + parts.free, PARTS);
                if parts.takes(outputs.bytes()) {
                    prop_assert_eq!(parts.get(at(now), tenant, &key), Some(outputs));
                }
            }
            let present: usize = parts.tenants.values().map(|tenant| tenant.answers.len()).sum();
            prop_assert_eq!(inserted, evicted + present as u64);
        }
    }

    #[test]
    fn outputs_are_copied_out_of_the_result_that_they_are_a_part_of() {
        let result = Bytes::from(vec![1; 1 << 20]);
        let shape = Shape::new(&[10]).unwrap();
        let data = result.slice(5..15);
        let kept = KeptOutputs::copy([(&shape, &data)].into_iter());
        assert_eq!(kept.outputs()[0].data, data);
        assert_ne!(kept.outputs()[0].data.as_ptr(), data.as_ptr());
    }
}
