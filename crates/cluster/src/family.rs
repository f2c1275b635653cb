//! Families: models that answer the same requests with different accuracy and cost.
//!
//! A model that says its family and its accuracy is a variant of it. A request for the family is answered by the most accurate variant that
//! can be in time, which is decided for each request when it arrives. Plans are made for longer, so that they need a rate for each variant:
//! [`VariantMix`] says how a family's rate is spread over its variants, and finds the spread whose answers are right most often.
//!
//! Sources: the choice of a variant for each request, `INFaaS` (Romero et al., USENIX ATC 2021, section 4); a plan for shares of the variants
//! that is as accurate as the devices allow, Proteus (Ahmad et al., ASPLOS 2024, section 4); the search, J. Kiefer, "Sequential minimax search
//! for a maximum", Proceedings of the AMS 4(3), 1953.

use std::{cmp::Ordering, collections::BTreeMap};

use crate::{ModelName, Percent};

/// The family that a model is a variant of, and its accuracy.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantOf {
    /// The name of the family, which clients use like that of a model.
    pub family: ModelName,
    /// The part of the answers that are right.
    pub accuracy: Percent,
}

impl VariantOf {
    /// The most variants of a family.
    pub const MAX_VARIANTS: usize = 16;
}

/// Returns the order of two variants with these accuracies: the more accurate one first.
pub fn by_accuracy(a: Percent, b: Percent) -> Ordering {
    b.get().total_cmp(&a.get())
}

/// The spread of a family's requests over its variants that a plan is made for: from all on the most accurate one, over pairs of neighbours,
/// to all on the least accurate one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariantMix(u32);

/// A plan, or whatever else was made for a mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed<T> {
    /// The mix.
    pub mix: VariantMix,
    /// The plan.
    pub plan: T,
}

impl VariantMix {
    /// All requests on the most accurate variants.
    pub const ACCURATE: Self = Self(0);
    /// All requests on the least accurate variants. Its number is one of Fibonacci's, as the search requires.
    pub const CHEAP: Self = Self(13);
    /// The part of the offered rate from which on a plan serves all of it: the rest is the error of an estimate.
    pub const FULLY_SERVED: f64 = 0.99;

    /// Returns the part of a family's requests for each of its variants, the most accurate first. They sum to 1.
    pub fn parts(self, variants: usize) -> Vec<f64> {
        let last = variants.saturating_sub(1);
        let place = f64::from(self.0) / f64::from(Self::CHEAP.0) * last as f64;
        let parts = (0..variants).map(|variant| (1.0 - (place - variant as f64).abs()).max(0.0));
        parts.collect()
    }

    /// Returns the plan of the mix with the largest value, as far as values rise up to it and fall behind it. `place` makes the plan of a mix,
    /// and is called at most eight times: once if the most accurate mix is good enough. An error after the first plan ends the search with
    /// what was found.
    ///
    /// # Errors
    /// The error of the first call.
    pub fn find<T, E>(
        mut place: impl FnMut(Self) -> Result<T, E>,
        is_enough: impl Fn(&T) -> bool,
        value: impl Fn(&T) -> f64,
    ) -> Result<Mixed<T>, E> {
        let accurate = place(Self::ACCURATE)?;
        if is_enough(&accurate) {
            let mix = Self::ACCURATE;
            return Ok(Mixed {
                mix,
                plan: accurate,
            });
        }
        let mut values = BTreeMap::from([(0, value(&accurate))]);
        let mut found = Mixed {
            mix: Self::ACCURATE,
            plan: accurate,
        };
        let mut try_step = |step: u32, found: &mut Mixed<T>| -> Option<f64> {
            if let Some(known) = values.get(&step) {
                return Some(*known);
            }
            let plan = place(Self(step)).ok()?;
            let this = value(&plan);
            if this > values[&found.mix.0] {
                let mix = Self(step);
                *found = Mixed { mix, plan };
            }
            values.insert(step, this);
            Some(this)
        };
        let (mut low, mut high) = (0, Self::CHEAP.0);
        // The two Fibonacci numbers before the last one.
        let (mut left, mut right) = (5, 8);
        while high - low > 1 {
            let (Some(of_left), Some(of_right)) =
                (try_step(left, &mut found), try_step(right, &mut found))
            else {
                return Ok(found);
            };
            if of_left >= of_right {
                (high, right) = (right, left);
                left = low + (high - right);
            } else {
                (low, left) = (left, right);
                right = low + (high - left);
            }
        }
        // The last step is no inner point.
        let next = found.mix.0 + 1;
        if next <= Self::CHEAP.0 {
            try_step(next, &mut found);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(mix: VariantMix, variants: usize) -> Vec<f64> {
        mix.parts(variants)
    }

    #[test]
    fn a_mix_goes_from_the_most_accurate_variant_over_neighbours_to_the_cheapest() {
        assert_eq!(parts(VariantMix::ACCURATE, 3), [1.0, 0.0, 0.0]);
        assert_eq!(parts(VariantMix::CHEAP, 3), [0.0, 0.0, 1.0]);
        assert_eq!(parts(VariantMix(5), 1), [1.0]);
        for step in 0..=VariantMix::CHEAP.0 {
            for variants in 2..=4 {
                let parts = parts(VariantMix(step), variants);
                assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                assert!(parts.iter().filter(|part| **part > 1e-9).count() <= 2);
            }
        }
        let [first, second] = parts(VariantMix(1), 2)[..] else {
            panic!("two variants");
        };
        assert!((first - 12.0 / 13.0).abs() < 1e-9 && (second - 1.0 / 13.0).abs() < 1e-9);
    }

    /// Finds the mix of two variants that are right in 90 and 60 % of the cases, of which a device computes so many requests/s. Returns it with
    /// the goodput and the number of plans.
    fn find(offered: f64, accurate_rps: f64, cheap_rps: f64) -> (VariantMix, f64, u32) {
        let mut calls = 0;
        let place = |mix: VariantMix| {
            calls += 1;
            let parts = mix.parts(2);
            let load = offered * (parts[0] / accurate_rps + parts[1] / cheap_rps);
            let goodput = offered / load.max(1.0);
            Ok::<_, ()>((goodput, goodput * (0.9 * parts[0] + 0.6 * parts[1])))
        };
        let found = VariantMix::find(place, |plan| plan.0 >= offered, |plan| plan.1).unwrap();
        (found.mix, found.plan.0, calls)
    }

    #[test]
    fn the_mix_whose_answers_are_right_most_often_is_found_in_eight_plans() {
        assert_eq!(find(90.0, 100.0, 1000.0), (VariantMix::ACCURATE, 90.0, 1));
        let (mix, goodput, calls) = find(500.0, 100.0, 1000.0);
        // All are served with at most a ninth on the accurate variant.
        assert_eq!((mix, goodput), (VariantMix(12), 500.0));
        assert!(calls <= 8, "{calls}");
        for offered in 1..100 {
            let (mix, _, calls) = find(f64::from(offered) * 20.0, 300.0, 1000.0);
            assert!(calls <= 8, "{calls}");
            let more = find(f64::from(offered + 1) * 20.0, 300.0, 1000.0);
            assert!(mix <= more.0, "at {offered}: {mix:?} and {more:?}");
        }
    }

    #[test]
    fn accuracy_is_given_up_only_for_answers() {
        assert_eq!(find(5000.0, 100.0, 1000.0).0, VariantMix::CHEAP);
        assert_eq!(find(5000.0, 1000.0, 1000.0).0, VariantMix::ACCURATE);
        // Answers that are right in 60 % in place of 90 % of the cases are worth it where there are more than 1.5 times as many.
        assert_eq!(find(5000.0, 1000.0, 1400.0).0, VariantMix::ACCURATE);
        assert_eq!(find(5000.0, 1000.0, 1600.0).0, VariantMix::CHEAP);
    }

    #[test]
    fn an_error_after_the_first_plan_ends_the_search() {
        let late = |mix: VariantMix| match mix.0 {
            0 => Ok(1.0),
            5 => Ok(9.0),
            _ => Err("late"),
        };
        let found = VariantMix::find(late, |_| false, |goodput| *goodput).unwrap();
        assert_eq!((found.mix, found.plan), (VariantMix(5), 9.0));
        let never = |_| Err::<f64, _>("never");
        assert_eq!(VariantMix::find(never, |_| false, |g| *g), Err("never"));
    }
}
