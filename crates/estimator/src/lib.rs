//! The latency, memory and utilisation of a program on a kind of device, estimated from its operators without running it.
//!
//! An [`OperatorGraph`] has the operators of a program, as `packhorse-worker inspect` finds them; a [`DeviceSheet`] has what a vendor
//! publishes of a device. [`Coefficients`] turn both into a [`Profile`](packhorse_cluster::Profile) for planning until the model is
//! measured. They were fitted to published measurements ([`dataset`]).
//!
//! Source: Usher (OSDI 2024), section 3.2, GK-Estimator: need and time of a model from the operators of its graph, by regression on batch
//! size, sizes of tensors, floating-point operations and kind of device. Deviations: Usher's regressors are a stack of four, trained on
//! measurements of single kernels, of which there are none to be had. With profiles of whole models alone, the form has to be given: a
//! roofline per class of operator, whose few coefficients are fitted by ridge regression. Each operator counts as one kernel, and they run
//! one after the other, as libtorch runs them; there are no concurrent branches.

mod coefficients;
pub mod dataset;
mod device_sheet;
mod estimate;
mod expected_error;
mod fit;
mod graph;
mod operator_class;

pub use coefficients::{Coefficients, CoefficientsError, Latency, Memory, Utilization};
pub use device_sheet::DeviceSheet;
pub use estimate::{BatchOperators, batch_sizes};
pub use expected_error::ExpectedError;
pub use graph::{
    GraphError, MAX_OPERATORS, OperatorGraph, Operators, PerBatch, ReadWeights, RecordedOperator,
    RecordedRun,
};
pub use operator_class::OperatorClass;
