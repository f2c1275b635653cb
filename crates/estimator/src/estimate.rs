//! From operators to the time, the memory and the utilisation of a batch.

use std::time::Duration;

use packhorse_cluster::{ByteCount, ComputeShare, Percent, Profile, ProfileRow, Program};

use crate::{
    coefficients::{Coefficients, Latency, Memory, Utilization},
    device_sheet::DeviceSheet,
    graph::{OperatorGraph, Operators},
    operator_class::OperatorClass,
};

/// The number of results per multiprocessor that is the unit of the coefficients of saturation.
const RESULTS_PER_MULTIPROCESSOR: f64 = 1000.0;
/// The exponent with which the times of device and host are combined: the larger, and a little more where they are near each other.
const OVERLAP: i32 = 4;
/// The exponent of the part of the multiprocessors that an operator uses, in its results.
const COVERAGE: f64 = 1.5;

/// Returns the batch sizes of a program's estimated profile, which are those of a measured one.
pub fn batch_sizes(program: &Program) -> Vec<u32> {
    let limit = program.rows_limit().max(1);
    let doubled = (0..32).map(|exponent| 1_u32 << exponent);
    let mut sizes: Vec<u32> = doubled.take_while(|size| *size < limit).collect();
    sizes.push(limit);
    sizes
}

/// The operators of a batch with their classes, so that many coefficients can be tried on them.
#[derive(Clone, Debug)]
pub struct BatchOperators {
    operators: Vec<BatchOperator>,
    /// The bytes of all parameters.
    parameter_bytes: f64,
    /// The most bytes of intermediate results.
    activation_bytes: f64,
    /// The most bytes that a convolution with a window of 3 x 3 reads and writes.
    window_bytes: f64,
    sheet: DeviceSheet,
}

#[derive(Clone, Copy, Debug)]
struct BatchOperator {
    class: OperatorClass,
    count: f64,
    operations: f64,
    bytes: f64,
    results: f64,
}

/// The time of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BatchTime {
    /// The time of the batch in seconds.
    total: f64,
    /// The part of it in which the device is busy.
    busy: f64,
}

impl BatchOperators {
    /// Evaluates a graph for a batch on a device.
    pub fn new(graph: &OperatorGraph, sheet: &DeviceSheet, rows: u32) -> Self {
        let moved =
            |operator: &Operators| operator.read_bytes.at(rows) + operator.written_bytes.at(rows);
        let operators = graph.operators.iter().map(|operator| BatchOperator {
            class: OperatorClass::of(&operator.name),
            count: operator.count as f64,
            operations: operator.operations.at(rows),
            bytes: operator.parameter_bytes as f64 + moved(operator),
            results: operator.elements.at(rows),
        });
        let windows = graph
            .operators
            .iter()
            .filter(|operator| OperatorClass::of(&operator.name) == OperatorClass::Convolution3x3);
        Self {
            operators: operators.collect(),
            parameter_bytes: graph.parameter_bytes as f64,
            activation_bytes: graph.activation_bytes.at(rows),
            window_bytes: windows.map(moved).fold(0.0, f64::max),
            sheet: *sheet,
        }
    }

    fn saturation(&self, operator: &BatchOperator) -> f64 {
        operator.results / (f64::from(self.sheet.multiprocessors) * RESULTS_PER_MULTIPROCESSOR)
    }

    /// Returns the time of one of these operators on the device, in seconds: the start of a kernel, and a roofline of the time to compute,
    /// longer where there are few results for many multiprocessors, and the time to move bytes.
    fn operator_time(&self, latency: &Latency, operator: &BatchOperator) -> f64 {
        let moving =
            operator.bytes / (self.sheet.bytes_per_s * latency.memory_efficiency(operator.class));
        let computing = if operator.class.computes() {
            let full = latency.half_saturation(operator.class) / self.saturation(operator) + 1.0;
            operator.operations / self.sheet.operations_per_s * full
                / latency.compute_efficiency(operator.class)
        } else {
            0.0
        };
        latency.kernel_start() + computing.hypot(moving)
    }

    /// Returns the time of the batch: the host starts the kernels while the device runs earlier ones.
    fn time(&self, latency: &Latency) -> BatchTime {
        let (mut device, mut host) = (0.0, 0.0);
        for operator in &self.operators {
            device += operator.count * self.operator_time(latency, operator);
            host += operator.count * latency.host_call();
        }
        let total =
            (f64::powi(device, OVERLAP) + f64::powi(host, OVERLAP)).powf(1.0 / f64::from(OVERLAP));
        BatchTime {
            total,
            busy: device / total,
        }
    }

    /// Returns the time of the batch in seconds.
    pub fn seconds(&self, latency: &Latency) -> f64 {
        self.time(latency).total
    }

    /// Returns the mean utilisation of the multiprocessors and the mean occupancy, in percent: the parts that the operators use, weighted by
    /// their times.
    pub fn utilization(&self, latency: &Latency, utilization: &Utilization) -> (f64, f64) {
        let (mut used, mut occupied, mut all) = (0.0, 0.0, 0.0);
        for operator in &self.operators {
            let part = self.saturation(operator) / utilization.half_coverage(operator.class);
            let covered = part.powf(COVERAGE) / (1.0 + part.powf(COVERAGE));
            let time = operator.count * self.operator_time(latency, operator);
            used += time * covered;
            occupied += time * covered * utilization.occupancy(operator.class).min(1.0);
            all += time;
        }
        let busy = 100.0 * self.time(latency).busy.min(1.0) / all.max(f64::MIN_POSITIVE);
        (used * busy, occupied * busy)
    }

    /// Returns the bytes of memory: parameters, a base, intermediate results in the allocator's blocks, and the workspace of a convolution.
    pub fn memory_bytes(&self, memory: &Memory) -> f64 {
        self.parameter_bytes
            + memory.base_bytes()
            + self.activation_bytes * memory.blocks()
            + self.window_bytes * memory.workspace()
    }
}

impl Coefficients {
    /// Returns the estimated profile of a program on a device for these batch sizes, without those for which there is not enough memory.
    /// Returns `None` if there is memory for none.
    pub fn profile(
        &self,
        graph: &OperatorGraph,
        sheet: &DeviceSheet,
        memory: ByteCount,
        batch_sizes: &[u32],
    ) -> Option<Profile> {
        let rows = batch_sizes.iter().map(|&rows| self.row(graph, sheet, rows));
        let fits = |row: &ProfileRow| row.memory.is_none_or(|needed| needed <= memory);
        Profile::estimated(rows.take_while(fits).collect()).ok()
    }

    fn row(&self, graph: &OperatorGraph, sheet: &DeviceSheet, rows: u32) -> ProfileRow {
        let batch = BatchOperators::new(graph, sheet, rows);
        let (used, occupied) = batch.utilization(&self.latency, &self.utilization);
        let nanos = (batch.seconds(&self.latency) * 1e9).clamp(1.0, 1e18);
        ProfileRow {
            batch_size: rows,
            compute_share: ComputeShare::WHOLE,
            latency: Duration::from_nanos(nanos as u64),
            latency_p99: None,
            memory: Some(ByteCount::new(batch.memory_bytes(&self.memory) as u64)),
            achieved_occupancy: Some(Percent::clamped(
                100.0 * self.utilization.highest_occupancy(),
            )),
            mean_occupancy: Some(Percent::clamped(occupied)),
            sm_utilization: Some(Percent::clamped(used)),
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::ArtifactDigest;

    use super::*;

    #[test]
    fn an_estimate_has_the_batch_sizes_of_a_measurement() {
        let program = |rows: u32| Program {
            model: "m".parse().unwrap(),
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size: rows,
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        assert_eq!(batch_sizes(&program(1)), [1]);
        assert_eq!(batch_sizes(&program(8)), [1, 2, 4, 8]);
        assert_eq!(batch_sizes(&program(12)), [1, 2, 4, 8, 12]);
    }
}
