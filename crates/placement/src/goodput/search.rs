//! The search: fill devices one after the other, then again and again empty one or two and fill them anew, and keep what is better.
//!
//! Source: large neighbourhood search, Shaw, "Using Constraint Programming and Local Search Methods to Solve Vehicle Routing
//! Problems", 1998.

mod fill;
mod tune;

use packhorse_cluster::{ByteCount, ComputeShare, DeviceIndex, ModelIndex};

use super::{random::Random, score::Score, shares};
use crate::{
    Budget, PlaceError,
    candidates::Candidates,
    estimate::{Fate, Outlook, World},
};
use fill::{Charge, Idea, SOBER, Taste};

/// How often devices are filled, at most.
const PASSES: usize = 2;
/// A change must be worth this much.
const WORTH: f64 = 1e-6;
/// A model that lacks less than this part of its rate wants no further replica.
const CONTENT: f64 = 1e-3;

/// What a search may do beyond what it does by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Liberties {
    /// Leave to chance what is taken, not only what is tried.
    pub(super) chance: bool,
    /// Confine replicas to compute shares.
    pub(super) shares: bool,
}

/// A walk through placements.
pub(super) struct Search<'s, 'w, 'a> {
    world: &'w World<'a>,
    candidates: &'s Candidates<'a>,
    score: &'s Score,
    here: Outlook<'w, 'a>,
    value: f64,
    /// What is tried from here.
    trial: Outlook<'w, 'a>,
    /// Where to go back to.
    before: Outlook<'w, 'a>,
    /// Where to go back to if tuning was of no use.
    untuned: Outlook<'w, 'a>,
    random: Random,
    ideas: Vec<Idea>,
    liberties: Liberties,
    /// Whether all is settled anew for everything that is tried, not only the device that it is tried on.
    exact: bool,
}

impl<'s, 'w, 'a> Search<'s, 'w, 'a> {
    pub(super) fn new(
        world: &'w World<'a>,
        candidates: &'s Candidates<'a>,
        score: &'s Score,
    ) -> Self {
        let here = Outlook::new(world);
        Self {
            value: score.of(&here),
            world,
            candidates,
            score,
            here,
            trial: Outlook::new(world),
            before: Outlook::new(world),
            untuned: Outlook::new(world),
            random: Random::new(),
            ideas: Vec::new(),
            liberties: Liberties::default(),
            exact: false,
        }
    }

    pub(super) fn here(&self) -> &Outlook<'w, 'a> {
        &self.here
    }

    pub(super) fn devices(&self) -> usize {
        self.world.problem.devices.len()
    }

    /// What the placement here is worth.
    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// Whether no model lacks anything at the rates that are expected.
    pub(super) fn serves_all(&self) -> bool {
        self.all(|fate| fate.sure)
    }

    /// Whether no model lacks anything, with headroom.
    pub(super) fn serves_all_with_headroom(&self) -> bool {
        self.all(|fate| fate.stressed)
    }

    fn all(&self, served: impl Fn(&Fate) -> f64) -> bool {
        let mut asked = self.here.fates().iter().zip(&self.world.demands);
        asked.all(|(fate, demand)| demand.rate <= 0.0 || served(fate) >= 1.0 - CONTENT)
    }

    /// What it may do from now on.
    pub(super) fn allow(&mut self, liberties: Liberties) {
        self.liberties = liberties;
    }

    /// Goes to a placement.
    pub(super) fn go_to(&mut self, placement: &Outlook<'w, 'a>) {
        self.here.copy(placement);
        self.value = self.score.of(&self.here);
    }

    /// Adds to every device what pays, again from the settled state until nothing more does; goes back where that turns out worse.
    pub(super) fn fill_all(&mut self, budget: &mut Budget<'_>) -> Result<(), PlaceError> {
        self.settle();
        for _ in 0..PASSES {
            let old = self.value;
            self.before.copy(&self.here);
            for device in 0..self.devices() {
                self.fill(device, SOBER, budget)?;
            }
            self.settle();
            if self.value <= old + WORTH {
                self.here.copy(&self.before);
                self.value = old;
                break;
            }
        }
        Ok(())
    }

    /// Empties one or two devices, wholly or by half, and fills them anew. Goes back unless that was better; says whether it was.
    /// Stays where it is if the budget ends meanwhile.
    pub(super) fn improve(&mut self, budget: &mut Budget<'_>) -> Result<bool, PlaceError> {
        let old = self.value;
        self.before.copy(&self.here);
        let rebuilt = self.rebuild(budget);
        if rebuilt.is_ok() && self.value > old + WORTH {
            return Ok(true);
        }
        self.here.copy(&self.before);
        self.value = old;
        rebuilt.map(|()| false)
    }

    /// Adds to every device what pays and tunes it. `exact`: with everything settled anew each time, so that what a device does to the others, and
    /// what the way to a placement leaves of what was there before, is not overlooked.
    pub(super) fn polish(
        &mut self,
        exact: bool,
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        self.exact = exact;
        let polished = self.polish_all(budget);
        self.exact = false;
        self.settle();
        polished
    }

    fn polish_all(&mut self, budget: &mut Budget<'_>) -> Result<(), PlaceError> {
        for _ in 0..PASSES {
            let old = self.value;
            for device in 0..self.devices() {
                self.fill(device, SOBER, budget)?;
                self.tune(device, budget)?;
            }
            if self.value <= old + WORTH {
                break;
            }
        }
        Ok(())
    }

    fn rebuild(&mut self, budget: &mut Budget<'_>) -> Result<(), PlaceError> {
        let devices = self.world.problem.devices.len();
        let first = self.random.below(devices);
        let mut chosen = vec![first];
        if devices > 1 && self.random.below(3) > 0 {
            let second = self.random.below(devices - 1);
            chosen.push(second + usize::from(second >= first));
        }
        let wholly = self.random.below(2) == 0;
        for &device in &chosen {
            self.empty(device, wholly);
        }
        self.value = self.score.of(&self.here);
        let taste = self.taste();
        for &device in &chosen {
            self.fill(device, taste, budget)?;
        }
        let mut untuned = f64::NEG_INFINITY;
        if self.liberties.chance {
            self.settle();
            self.untuned.copy(&self.here);
            untuned = self.value;
        }
        for &device in &chosen {
            self.tune(device, budget)?;
        }
        self.settle();
        // What devices do to each other shows only when all is settled.
        if self.value < untuned {
            self.here.copy(&self.untuned);
            self.value = untuned;
        }
        Ok(())
    }

    fn taste(&mut self) -> Taste {
        let bold = self.liberties.chance;
        let by_memory = bold && self.random.below(2) == 0;
        Taste {
            charge: if by_memory {
                Charge::Memory
            } else {
                Charge::Time
            },
            shaken: true,
            bold,
        }
    }

    fn settle(&mut self) {
        self.here.settle();
        self.value = self.score.of(&self.here);
    }

    /// Takes all replicas of a device away, or each with even odds.
    fn empty(&mut self, device: usize, wholly: bool) {
        let models: Vec<usize> = self.here.on(device).iter().map(|slot| slot.model).collect();
        for place in self.here.range(device).rev() {
            if wholly || self.random.below(2) == 0 {
                self.here.take(place);
            }
        }
        self.here.settle_around(device, &models);
    }

    /// The compute shares that a replica may be tried with, in the place of the one at `place` or beside all.
    fn shares(
        &self,
        device: usize,
        model: usize,
        batch: u32,
        place: Option<usize>,
    ) -> impl Iterator<Item = ComputeShare> + use<> {
        let tried = self.liberties.shares;
        let shares = tried.then(|| shares::paying(&self.here, device, model, batch, place));
        shares.into_iter().flatten()
    }

    fn free_memory(&self, device: usize) -> ByteCount {
        let on_device = self.here.on(device).iter();
        let used = on_device
            .map(|slot| self.memory(device, slot.model, slot.batch))
            .sum();
        self.world.problem.devices[device]
            .memory
            .saturating_sub(used)
    }

    fn memory(&self, device: usize, model: usize, batch: u32) -> ByteCount {
        let profile = self
            .world
            .problem
            .profile(ModelIndex(model), DeviceIndex(device));
        profile
            .and_then(|profile| profile.memory(batch))
            .unwrap_or_default()
    }
}

/// Settles what a change of a device changes, `before` being the models that had replicas there, or all of it.
fn settle(outlook: &mut Outlook<'_, '_>, device: usize, before: &[usize], exact: bool) {
    if exact {
        outlook.settle();
    } else {
        outlook.settle_around(device, before);
    }
}

/// The batch sizes of known memory that a model may have on a device, with that memory.
pub(super) fn sizes<'s>(
    candidates: &'s Candidates<'_>,
    model: usize,
    device: usize,
) -> impl Iterator<Item = (u32, ByteCount)> + 's {
    let all = candidates.of(ModelIndex(model), DeviceIndex(device)).iter();
    all.filter_map(|candidate| Some((candidate.batch_size, candidate.memory?)))
}
