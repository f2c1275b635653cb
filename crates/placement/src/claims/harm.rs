//! The claims that a plan leaves unmet.

/// The sum of the lost parts, in thousandths, from which the current replicas stay rather than that: what is less is worth a better plan.
const SERIOUS: usize = 100;

/// The part of the claims of models of one priority that a plan leaves unmet, the larger the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Harm {
    /// The number of served models that lose what they are measured to need to models without a claim to it.
    pub(super) deprived: usize,
    /// The number of models that are served or get requests, and have no replica.
    pub(super) down: usize,
    /// The sum of the parts that served models lose of what they keep, in thousandths.
    pub(super) lost: usize,
    /// The number of other models that should have a replica and have none.
    pub(super) homeless: usize,
    /// The sum of the parts that models which get requests lack of their fair shares while others are planned for more than theirs,
    /// in thousandths.
    pub(super) behind: usize,
    /// The number of served models of a lower priority that have no replica, although the memory of the devices suffices for one.
    pub(super) displaced: usize,
    /// The sum of the parts that models lack of the other rates that they may take from models of a lower priority, in thousandths.
    pub(super) unreserved: usize,
}

impl Harm {
    pub(super) const NONE: Self = Self {
        deprived: 0,
        down: 0,
        lost: 0,
        homeless: 0,
        behind: 0,
        displaced: 0,
        unreserved: 0,
    };
}

/// The harm of a plan, the larger the worse: first of all the number of models that it deprives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unmet {
    pub(super) deprived: usize,
    /// The harm by priority, from the highest to the lowest.
    pub(super) levels: Vec<Harm>,
}

impl Unmet {
    pub(super) fn new(levels: Vec<Harm>) -> Self {
        Self {
            deprived: levels.iter().map(|harm| harm.deprived).sum(),
            levels,
        }
    }

    /// Returns true if all claims of the first of the priorities are met.
    pub(super) fn is_kept(&self, levels: usize) -> bool {
        self.levels[..levels].iter().all(|harm| *harm == Harm::NONE)
    }

    /// Returns true if all that is lost is worth a better plan.
    pub(super) fn is_slight(&self) -> bool {
        let lost: usize = self.levels.iter().map(|harm| harm.lost).sum();
        self.deprived == 0 && lost < SERIOUS && self.levels.iter().all(|harm| harm.down == 0)
    }
}
