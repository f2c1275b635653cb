//! The components of models that one driver must decide for, and which driver that is.
//!
//! Models are coupled that have replicas on one device or are variants of one family or versions of one model, directly or through others. A component is never divided: where
//! a chain of models connects all devices, one driver decides for all of them.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// The load of the most loaded driver over the mean from which on components move. Below, they stay where they are: a move stops all drivers for a moment.
const UNEVEN: f64 = 1.5;

/// A set of coupled homes, for which one driver must decide.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Component {
    /// The numbers of the homes.
    pub(super) homes: Vec<u32>,
    /// The replicas of its models that each driver has.
    pub(super) replicas: BTreeMap<usize, usize>,
}

impl Component {
    fn load(&self) -> usize {
        // A model without replicas has requests, too, which are refused.
        self.replicas.values().sum::<usize>().max(1)
    }

    /// Returns the driver that has the most of it; `None` if none has any.
    fn driver(&self) -> Option<usize> {
        let most = |(driver, replicas): (&usize, &usize)| (*replicas, std::cmp::Reverse(*driver));
        let most = self.replicas.iter().max_by_key(|entry| most(*entry));
        most.map(|(driver, _)| *driver)
    }
}

/// Homes that are being coupled, by a key `K` of whatever they have in common.
#[derive(Debug)]
pub(super) struct Couplings<K> {
    /// The parent of every home, by number; a home without one stands for its component.
    parents: BTreeMap<u32, u32>,
    first_with: HashMap<K, u32>,
    replicas: BTreeMap<u32, BTreeMap<usize, usize>>,
}

impl<K: Eq + Hash> Couplings<K> {
    pub(super) fn new() -> Self {
        Self {
            parents: BTreeMap::new(),
            first_with: HashMap::new(),
            replicas: BTreeMap::new(),
        }
    }

    /// Adds a home, which a driver has; it is in a component of its own.
    pub(super) fn add(&mut self, home: u32, driver: Option<usize>) {
        self.parents.entry(home).or_insert(home);
        let replicas = self.replicas.entry(home).or_default();
        driver.map(|driver| replicas.entry(driver).or_default());
    }

    /// Counts a replica of a home that was added.
    pub(super) fn count_replica(&mut self, home: u32, driver: usize) {
        let replicas = self.replicas.entry(home).or_default();
        *replicas.entry(driver).or_default() += 1;
    }

    /// Couples a home that was added with all others that have this.
    pub(super) fn couple(&mut self, home: u32, with: K) {
        let other = *self.first_with.entry(with).or_insert(home);
        let (one, other) = (self.root(home), self.root(other));
        self.parents.insert(one, other);
    }

    fn root(&mut self, home: u32) -> u32 {
        let mut root = home;
        while self.parents[&root] != root {
            root = self.parents[&root];
        }
        // The next way is shorter.
        self.parents.insert(home, root);
        root
    }

    /// Returns the components, by the numbers of their first homes.
    pub(super) fn components(mut self) -> Vec<Component> {
        let homes: Vec<u32> = self.parents.keys().copied().collect();
        let mut places: BTreeMap<u32, usize> = BTreeMap::new();
        let mut components: Vec<Component> = Vec::new();
        for home in homes {
            let root = self.root(home);
            let place = *places.entry(root).or_insert(components.len());
            if place == components.len() {
                components.push(Component::default());
            }
            let component = &mut components[place];
            component.homes.push(home);
            for (driver, replicas) in self.replicas.get(&home).into_iter().flatten() {
                *component.replicas.entry(*driver).or_default() += replicas;
            }
        }
        components
    }
}

/// Returns a driver for each component: the one that has most of it, unless the drivers' loads are uneven, which the least loaded one mends.
pub(super) fn assign(components: &[Component], drivers: usize) -> Vec<usize> {
    let mut loads = vec![0; drivers];
    let mut assigned: Vec<Option<usize>> = components.iter().map(Component::driver).collect();
    for (component, driver) in components.iter().zip(&assigned) {
        driver.map(|driver| loads[driver] += component.load());
    }
    // The largest new ones first, so that the small ones fill up.
    let mut new: Vec<usize> = (0..components.len())
        .filter(|place| assigned[*place].is_none())
        .collect();
    new.sort_by_key(|place| std::cmp::Reverse(components[*place].load()));
    for place in new {
        let least = least_loaded(&loads);
        loads[least] += components[place].load();
        assigned[place] = Some(least);
    }
    let mean = loads.iter().sum::<usize>() as f64 / drivers as f64;
    loop {
        let least = least_loaded(&loads);
        let most = (0..drivers)
            .max_by_key(|driver| loads[*driver])
            .unwrap_or(least);
        if loads[most] as f64 <= UNEVEN * mean {
            break;
        }
        // The one that leaves both as even as can be.
        let gap = loads[most] - loads[least];
        let of_most = (0..components.len()).filter(|place| assigned[*place] == Some(most));
        let better = of_most.filter(|place| components[*place].load() < gap);
        let Some(moved) = better.min_by_key(|place| (2 * components[*place].load()).abs_diff(gap))
        else {
            break;
        };
        loads[most] -= components[moved].load();
        loads[least] += components[moved].load();
        assigned[moved] = Some(least);
    }
    assigned.into_iter().flatten().collect()
}

fn least_loaded(loads: &[usize]) -> usize {
    (0..loads.len())
        .min_by_key(|driver| loads[*driver])
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_coupled_through_others() {
        let mut couplings = Couplings::new();
        for home in 0..6 {
            couplings.add(home, None);
        }
        for (home, device) in [(0, "a"), (1, "a"), (1, "b"), (4, "c"), (3, "b"), (5, "d")] {
            couplings.couple(home, device);
        }
        let components = couplings.components();
        let homes: Vec<_> = components
            .into_iter()
            .map(|component| component.homes)
            .collect();
        assert_eq!(homes, [vec![0, 1, 3], vec![2], vec![4], vec![5]]);
    }

    fn component(replicas: &[(usize, usize)]) -> Component {
        Component {
            homes: vec![0],
            replicas: replicas.iter().copied().collect(),
        }
    }

    #[test]
    fn a_component_stays_with_the_driver_that_has_most_of_it() {
        let components = [component(&[(0, 2), (1, 3)]), component(&[(0, 4)])];
        assert_eq!(assign(&components, 2), [1, 0]);
    }

    #[test]
    fn new_components_go_to_the_least_loaded_driver() {
        let components = [component(&[(0, 5)]), component(&[]), component(&[])];
        assert_eq!(assign(&components, 2), [0, 1, 1]);
    }

    #[test]
    fn an_uneven_load_is_evened_by_few_moves_and_an_even_one_stays() {
        let even = [
            component(&[(0, 5)]),
            component(&[(0, 1)]),
            component(&[(1, 3)]),
        ];
        assert_eq!(assign(&even, 2), [0, 0, 1]);
        let uneven = [
            component(&[(0, 5)]),
            component(&[(0, 4)]),
            component(&[(0, 1)]),
        ];
        assert_eq!(assign(&uneven, 2), [1, 0, 0]);
        let whole = [component(&[(0, 9)]), component(&[(1, 1)])];
        assert_eq!(assign(&whole, 2), [0, 1], "a component is never divided");
    }
}
