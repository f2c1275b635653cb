//! The demand of waiting requests that the devices with their models do not serve, by which Clockwork chooses the weights to load.
//!
//! A model's demand `d` is the computation of its waiting requests over its SLO: the number of devices that would serve them in time. The devices that have
//! the model share it equally, and a device whose models have more than one device's demand in all serves that part of each. What remains is
//! unserved.
//!
//! Source: Gujarati et al., "Serving DNNs like Clockwork", OSDI 2020, section 5.3 and appendix B (load priority), and its released code. Deviation: the paper
//! weighs the devices of a model by the time that each has left, here they have equal parts.

/// The demand of one model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Demand {
    pub(super) model: usize,
    /// The number of devices that would serve the waiting requests in time.
    pub(super) devices: f64,
    /// The devices that have the model, or will have it.
    pub(super) holders: Vec<usize>,
}

/// Returns the models with unserved demand, the largest first.
pub(super) fn unserved(demands: &[Demand], devices: usize) -> Vec<(usize, f64)> {
    let mut load = vec![0.0; devices];
    for demand in demands {
        for &holder in &demand.holders {
            load[holder] += demand.devices / demand.holders.len() as f64;
        }
    }
    let unserved = demands.iter().map(|demand| {
        let part = demand.devices / demand.holders.len() as f64;
        let served = demand
            .holders
            .iter()
            .map(|&holder| part * (1.0 / load[holder]).min(1.0));
        (demand.model, demand.devices - served.sum::<f64>())
    });
    // What differs by rounding only is served.
    let mut unserved: Vec<(usize, f64)> = unserved.filter(|demand| demand.1 > 1e-9).collect();
    unserved.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    unserved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overloaded_device_leaves_a_part_of_each_of_its_models() {
        let demand = |model, devices, holders: &[usize]| Demand {
            model,
            devices,
            holders: holders.to_vec(),
        };
        // Device 0 has 1.5 + 0.5 = 2 devices' demand and serves half of it. Model 1 has its other half on device 1, which serves it.
        let demands = [
            demand(0, 1.5, &[0]),
            demand(1, 1.0, &[0, 1]),
            demand(2, 0.2, &[]),
        ];
        assert_eq!(unserved(&demands, 2), [(0, 0.75), (1, 0.25), (2, 0.2)]);
        assert_eq!(unserved(&demands[1..2], 2), []);
    }
}
