//! Families: models that answer the same requests with different accuracy and cost.
//!
//! A model that says its family and its accuracy is a variant of it. A request for the family is answered by the most accurate variant that
//! can be in time, which is decided for each request when it arrives. Plans are made for longer, so that they need a rate for each variant:
//! [`VariantMix`] says how a family's rate is spread over its variants, and finds the most accurate spread that the devices can carry.
//!
//! Sources: the choice of a variant for each request, `INFaaS` (Romero et al., USENIX ATC 2021, section 4); a plan that serves all requests
//! first and the most accurate variants second, Proteus (Ahmad et al., ASPLOS 2024, section 4).

use std::cmp::Ordering;

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
    /// All requests on the least accurate variants.
    pub const CHEAP: Self = Self(16);
    /// The part of the goodput by which a more accurate mix may be worse: the error of an estimate.
    const TOLERANCE: f64 = 0.01;

    /// Returns the part of a family's requests for each of its variants, the most accurate first. They sum to 1.
    pub fn parts(self, variants: usize) -> Vec<f64> {
        let last = variants.saturating_sub(1);
        let place = f64::from(self.0) / f64::from(Self::CHEAP.0) * last as f64;
        let parts = (0..variants).map(|variant| (1.0 - (place - variant as f64).abs()).max(0.0));
        parts.collect()
    }

    /// Returns the plan of the most accurate mix with which the devices serve as much as with the least accurate one. `place` makes the
    /// plan of a mix, `goodput` returns what that serves of the `offered` requests/s. `place` is called at most six times; an error after
    /// the first plan ends the search with what was found.
    ///
    /// # Errors
    /// That of the first call.
    pub fn find<T, E>(
        offered: f64,
        mut place: impl FnMut(Self) -> Result<T, E>,
        goodput: impl Fn(&T) -> f64,
    ) -> Result<Mixed<T>, E> {
        let enough = 1.0 - Self::TOLERANCE;
        let mixed = |mix, plan| Mixed { mix, plan };
        let accurate = mixed(Self::ACCURATE, place(Self::ACCURATE)?);
        if goodput(&accurate.plan) >= enough * offered {
            return Ok(accurate);
        }
        let Ok(cheap) = place(Self::CHEAP) else {
            return Ok(accurate);
        };
        let target = enough * goodput(&cheap);
        if goodput(&accurate.plan) >= target {
            return Ok(accurate);
        }
        let mut too_accurate = Self::ACCURATE.0;
        let mut found = mixed(Self::CHEAP, cheap);
        while found.mix.0 - too_accurate > 1 {
            let middle = Self(too_accurate.midpoint(found.mix.0));
            let Ok(plan) = place(middle) else {
                break;
            };
            if goodput(&plan) >= target {
                found = mixed(middle, plan);
            } else {
                too_accurate = middle.0;
            }
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
        assert_eq!(parts(VariantMix(4), 3), [0.5, 0.5, 0.0]);
        assert_eq!(parts(VariantMix(8), 3), [0.0, 1.0, 0.0]);
        assert_eq!(parts(VariantMix(14), 3), [0.0, 0.25, 0.75]);
        assert_eq!(parts(VariantMix::CHEAP, 3), [0.0, 0.0, 1.0]);
        assert_eq!(parts(VariantMix(5), 1), [1.0]);
        assert_eq!(parts(VariantMix(4), 2), [0.75, 0.25]);
    }

    /// Finds the mix of two variants, of which the accurate one takes a device's whole time for `cost` requests fewer than the cheap one.
    fn find(offered: f64, accurate_rps: f64, cheap_rps: f64) -> (VariantMix, f64, u32) {
        let mut calls = 0;
        let place = |mix: VariantMix| {
            calls += 1;
            let parts = mix.parts(2);
            let load = offered * (parts[0] / accurate_rps + parts[1] / cheap_rps);
            Ok::<f64, ()>(offered / load.max(1.0))
        };
        let found = VariantMix::find(offered, place, |goodput| *goodput).unwrap();
        (found.mix, found.plan, calls)
    }

    #[test]
    fn the_most_accurate_mix_that_serves_everything_is_found_in_six_plans() {
        assert_eq!(find(90.0, 100.0, 1000.0), (VariantMix::ACCURATE, 90.0, 1));
        let (mix, goodput, calls) = find(500.0, 100.0, 1000.0);
        assert!(goodput >= 495.0, "{goodput}");
        // A twelfth less on the cheap variant would not be served: 500 * (x / 100 + (1 - x) / 1000) = 1 at x = 1/9.
        assert_eq!((mix, calls), (VariantMix(15), 6));
        assert!(find(500.0, 300.0, 1000.0).0 < mix);
    }

    #[test]
    fn without_enough_devices_the_goodput_counts_and_equally_cheap_variants_are_not_given_up() {
        assert_eq!(find(5000.0, 100.0, 1000.0).0, VariantMix::CHEAP);
        assert_eq!(find(5000.0, 1000.0, 1000.0).0, VariantMix::ACCURATE);
    }

    #[test]
    fn an_error_after_the_first_plan_ends_the_search() {
        let late = |mix| match mix {
            VariantMix::ACCURATE => Ok(1.0),
            VariantMix::CHEAP => Ok(9.0),
            _ => Err("late"),
        };
        let found = VariantMix::find(10.0, late, |goodput| *goodput).unwrap();
        assert_eq!((found.mix, found.plan), (VariantMix::CHEAP, 9.0));
        let never = |_| Err::<f64, _>("never");
        assert_eq!(VariantMix::find(1.0, never, |g| *g), Err("never"));
    }
}
