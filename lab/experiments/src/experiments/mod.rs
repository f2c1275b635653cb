//! The experiments, one file each, and their table.

mod ablation;
mod autoscale;
mod bursts;
mod crowd;
mod estimate;
mod estimates;
mod figure_sweeps;
mod hidden_interference;
mod loads;
mod long_search;
mod max_min;
mod measured_rates;
mod mixed;
mod objectives;
mod prices;
mod published;
mod rates;
mod reach;
mod router;
mod variants;
mod vision;

use crate::experiment::Experiment;

/// All experiments, in the order of the overview. An experiment in this list is run, written and summarised.
pub(crate) const EXPERIMENTS: &[&dyn Experiment] = &[
    &vision::Vision,
    &mixed::Mixed,
    &loads::Loads,
    &figure_sweeps::WITHOUT_SHARES,
    &figure_sweeps::VISION_AT_1000,
    &figure_sweeps::MIXED_LOADS,
    &ablation::Ablation,
    &router::Router,
    &reach::Reach,
    &long_search::LongSearch,
    &hidden_interference::HiddenInterference,
    &bursts::Bursts,
    &max_min::MaxMin,
    &objectives::Objectives,
    &estimate::Estimate,
    &estimates::Estimates,
    &rates::Rates,
    &measured_rates::MeasuredRates,
    &autoscale::Autoscale,
    &prices::Prices,
    &published::Published,
    &variants::Variants,
    &crowd::Crowd,
];
