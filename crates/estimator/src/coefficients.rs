//! The coefficients of the estimate: their names, their priors, and the fitted ones.

use std::{fmt::Write as _, sync::OnceLock};

use crate::operator_class::OperatorClass;

/// The part of the memory's bandwidth that operators use which multiply and add.
const COMPUTING_MEMORY_EFFICIENCY: f64 = 0.8;

/// A group of positive coefficients that are fitted together.
pub(crate) trait Group: Sized {
    /// The names of the coefficients, with a guess for each from which the fit starts and to which it is drawn.
    const PRIORS: &'static [(&'static str, f64)];

    /// Creates the group from its coefficients, in the order of [`Group::PRIORS`].
    fn from_values(values: &[f64]) -> Self;

    /// Returns the coefficients, in the order of [`Group::PRIORS`].
    fn values(&self) -> &[f64];
}

macro_rules! group {
    ($(#[$doc:meta])* $group:ident { $($name:literal: $prior:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $group(Vec<f64>);

        impl Default for $group {
            /// Returns the guesses from which the fit starts.
            fn default() -> Self {
                Self(Self::PRIORS.iter().map(|(_, prior)| *prior).collect())
            }
        }

        impl Group for $group {
            const PRIORS: &'static [(&'static str, f64)] = &[$(($name, $prior),)*];

            fn from_values(values: &[f64]) -> Self {
                assert_eq!(values.len(), Self::PRIORS.len(), "one value for each coefficient");
                Self(values.to_vec())
            }

            fn values(&self) -> &[f64] {
                &self.0
            }
        }
    };
}

group! {
    /// The coefficients of a batch's time.
    Latency {
        // The parts of the device's published operations per second. Winograd's algorithm needs fewer operations than are counted.
        "compute.convolution_1x1": 0.7,
        "compute.convolution_3x3": 1.5,
        "compute.convolution": 0.5,
        "compute.grouped_convolution": 0.3,
        "compute.depthwise_convolution": 0.1,
        "compute.product": 0.9,
        "compute.batched_product": 0.6,
        // The thousands of results per multiprocessor with which half of that is reached.
        "half_saturation.convolution": 2.0,
        "half_saturation.product": 2.0,
        // The parts of the published bytes per second.
        "memory.normalization": 0.7,
        "memory.reduction": 0.7,
        "memory.pointwise": 0.8,
        "memory.copy": 0.6,
        "memory.lookup": 0.2,
        // Times of each operator, in microseconds: on the device, and on the host.
        "kernel_start_us": 3.0,
        "host_call_us": 30.0,
    }
}

group! {
    /// The coefficients of the utilisation of multiprocessors.
    Utilization {
        // The thousands of results per multiprocessor with which half of the multiprocessors are used.
        "half_coverage.convolution": 4.0,
        "half_coverage.product": 3.0,
        "half_coverage.other": 8.0,
        // The parts of a used multiprocessor's thread slots.
        "occupancy.computing": 0.4,
        "occupancy.other": 0.8,
        // The highest occupancy of any operator, which hardly depends on the program.
        "occupancy.highest": 0.9,
    }
}

group! {
    /// The coefficients of memory.
    Memory {
        // The allocator's blocks over the bytes in them.
        "blocks": 2.0,
        // The workspace over the bytes that a convolution with a window of 3 x 3 reads and writes.
        "workspace": 1.0,
        "base_mib": 10.0,
    }
}

impl Latency {
    pub(crate) fn compute_efficiency(&self, class: OperatorClass) -> f64 {
        self.0[class.index()]
    }

    pub(crate) fn half_saturation(&self, class: OperatorClass) -> f64 {
        self.0[OperatorClass::COMPUTING + usize::from(!class.is_convolution())]
    }

    pub(crate) fn memory_efficiency(&self, class: OperatorClass) -> f64 {
        if class.computes() {
            COMPUTING_MEMORY_EFFICIENCY
        } else {
            self.0[class.index() + 2]
        }
    }

    /// Returns the time of an operator on the device beside its work, in seconds.
    pub(crate) fn kernel_start(&self) -> f64 {
        self.0[14] * 1e-6
    }

    /// Returns the time of an operator on the host, in seconds.
    pub(crate) fn host_call(&self) -> f64 {
        self.0[15] * 1e-6
    }

    /// Returns the guesses for programs that TVM has compiled. Its host does little for each operator. Without cuDNN, it computes a convolution with a window
    /// of 3 x 3 like any other, without Winograd's algorithm, and groups with as little reuse of what is read as single channels.
    #[must_use]
    pub fn of_tvm() -> Self {
        let mut values = Self::default().0;
        values[OperatorClass::Convolution3x3.index()] =
            values[OperatorClass::Convolution1x1.index()];
        values[OperatorClass::GroupedConvolution.index()] =
            values[OperatorClass::DepthwiseConvolution.index()];
        values[15] = 0.5;
        Self(values)
    }
}

impl Utilization {
    pub(crate) fn half_coverage(&self, class: OperatorClass) -> f64 {
        match class {
            _ if class.is_convolution() => self.0[0],
            _ if class.computes() => self.0[1],
            _ => self.0[2],
        }
    }

    pub(crate) fn occupancy(&self, class: OperatorClass) -> f64 {
        self.0[3 + usize::from(!class.computes())]
    }

    pub(crate) fn highest_occupancy(&self) -> f64 {
        self.0[5]
    }
}

impl Memory {
    pub(crate) fn blocks(&self) -> f64 {
        self.0[0]
    }

    pub(crate) fn workspace(&self) -> f64 {
        self.0[1]
    }

    pub(crate) fn base_bytes(&self) -> f64 {
        self.0[2] * f64::from(1 << 20)
    }
}

/// The coefficients of a runtime; by default the guesses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coefficients {
    /// Those of time.
    pub latency: Latency,
    /// Those of utilisation.
    pub utilization: Utilization,
    /// Those of memory.
    pub memory: Memory,
}

/// The reason why a text has no coefficients.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("coefficients: expected a line {0},NUMBER with a positive number")]
pub struct CoefficientsError(&'static str);

/// The coefficients of libtorch, which runs programs operator by operator. Written by
/// `PACKHORSE_BLESS=1 cargo test -p packhorse-estimator coefficients`.
const LIBTORCH: &str = include_str!("libtorch.csv");

impl Coefficients {
    /// Returns the coefficients of libtorch.
    pub fn libtorch() -> &'static Self {
        static PARSED: OnceLock<Coefficients> = OnceLock::new();
        PARSED.get_or_init(|| Self::from_csv(LIBTORCH).expect("the file is checked by a test"))
    }

    /// Reads `coefficient,value` lines.
    ///
    /// # Errors
    /// Names the first coefficient that is missing.
    pub fn from_csv(text: &str) -> Result<Self, CoefficientsError> {
        fn group<G: Group>(text: &str) -> Result<G, CoefficientsError> {
            let value = |name: &'static str| {
                let cells = text.lines().filter_map(|line| line.split_once(','));
                let mut values = cells.filter(|cells| cells.0 == name);
                let value = values.next().and_then(|cells| cells.1.parse::<f64>().ok());
                let positive = value.filter(|value| value.is_finite() && *value > 0.0);
                positive.ok_or(CoefficientsError(name))
            };
            let values: Result<Vec<f64>, _> =
                G::PRIORS.iter().map(|(name, _)| value(name)).collect();
            Ok(G::from_values(&values?))
        }
        Ok(Self {
            latency: group(text)?,
            utilization: group(text)?,
            memory: group(text)?,
        })
    }

    /// Writes what [`Coefficients::from_csv`] reads, with four digits.
    pub fn to_csv(&self) -> String {
        fn write<G: Group>(text: &mut String, group: &G) {
            for ((name, _), value) in G::PRIORS.iter().zip(group.values()) {
                writeln!(text, "{name},{value:.4}").expect("writing to a string cannot fail");
            }
        }
        let mut text = "coefficient,value\n".to_owned();
        write(&mut text, &self.latency);
        write(&mut text, &self.utilization);
        write(&mut text, &self.memory);
        text
    }
}
