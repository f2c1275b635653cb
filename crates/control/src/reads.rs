//! The parts of the controller's state that a driver reads, to show them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use packhorse_cluster::{
    ClusterId, DeviceId, DeviceKind, Discipline, ModelId, ModelName, ModelVersion, NodeName,
    PolicyOptions, ProfileTable, Program, Replica, ReplicaId, ReplicaStatus, RequestsPerSecond,
    Time,
};
use packhorse_contention::PairTable;

use crate::{
    command::CommandError,
    controller::Controller,
    event::LinkState,
    finding::Finding,
    incidents::Incident,
    learned_times::{BatchTime, sightings},
    models::Model,
    nodes::Node,
    predictions::PredictedGoodput,
    rates::RateEstimate,
    record::{Forecast, PlanOutcome, PlanRecord, SplitRecord},
    status::{ModelStatus, model_status},
};

impl Controller {
    /// Returns the number of the gateway's start.
    pub fn epoch(&self) -> u64 {
        self.fence.epoch()
    }

    /// Returns the identity of the store.
    pub fn cluster_id(&self) -> &ClusterId {
        self.fence.cluster_id()
    }

    /// Returns the time of the last call, which is the time of what is read.
    pub fn now(&self) -> Time {
        self.last_call()
    }

    /// Returns the registered models, by name and version.
    pub fn models(&self) -> impl Iterator<Item = (&ModelId, &Model)> {
        self.state.models.iter()
    }

    /// Returns a registered model.
    pub fn model(&self, id: &ModelId) -> Option<&Model> {
        self.state.models.get(id)
    }

    /// Returns the identity of a registered model; of its newest version if none is given.
    ///
    /// # Errors
    /// If no model has this name, or it does not have this version.
    pub fn find_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<ModelId, CommandError> {
        self.state.models.find(name, version)
    }

    /// Returns the state of a registered model, with its reason; `None` if it is not registered.
    pub fn model_status(&self, id: &ModelId) -> Option<ModelStatus> {
        model_status(&self.state, &self.planning, id)
    }

    /// Returns the goodput of a model, predicted and observed; `None` before it was sampled under a plan.
    pub fn predicted_goodput(&self, id: &ModelId) -> Option<PredictedGoodput> {
        self.predictions.of(id)
    }

    /// Returns the observed goodput of the last hour over the predicted one, minus 1, over all models; `None` while there is nothing
    /// to compare.
    pub fn total_bias(&self) -> Option<f64> {
        self.predictions.total_bias()
    }

    /// Returns the requests since the current plan was adopted, or since the gateway was started with it.
    pub fn plan_outcome(&self) -> PlanOutcome {
        self.predictions.outcome()
    }

    /// Returns the rate of a model that the next plan is made for; `None` if it is not registered. For a variant it is that of the current
    /// plan: what the next one spreads over the variants is known only with it.
    pub fn planned_rate(&self, id: &ModelId) -> Option<RequestsPerSecond> {
        let model = self.state.models.get(id)?;
        if model.spec.variant.is_some()
            && let Some(forecast) = self.state.plan.forecasts.get(id)
        {
            return Some(forecast.rate);
        }
        self.demanded_rate(id, Duration::ZERO)
    }

    /// Returns the present share of a version in the requests that name none, in percent.
    pub fn share(&self, id: &ModelId) -> u32 {
        self.state.traffic.share(id)
    }

    /// Returns the split of a model's requests over its versions.
    pub fn split(&self, name: &ModelName) -> SplitRecord {
        self.state.traffic.record(name)
    }

    /// Returns the measured rate of a model, in rows, with its interval; `None` if it is not registered.
    pub fn measured_rate(&self, id: &ModelId) -> Option<RateEstimate> {
        self.rates.measured(id)
    }

    /// Returns the mean number of rows of a model's requests since the gateway's start; `None` if none have come.
    pub fn rows_per_request(&self, id: &ModelId) -> Option<f64> {
        self.rates.rows_per_request(id)
    }

    /// Returns the replicas of a model: those of the newest plan first, then those of earlier plans that are still wanted.
    pub fn replicas_of<'a>(
        &'a self,
        model: &'a ModelId,
    ) -> impl Iterator<Item = &'a Replica<Arc<Program>>> {
        let replicas = || self.state.rollout.of_model(model);
        let planned = replicas().filter(|replica| replica.is_planned());
        planned.chain(replicas().filter(|replica| !replica.is_planned()))
    }

    /// Returns the replicas of a device: those of the newest plan, and those of earlier plans that are still wanted.
    pub fn replicas_on<'a>(
        &'a self,
        device: &'a DeviceId,
    ) -> impl Iterator<Item = &'a Replica<Arc<Program>>> {
        self.state.rollout.on_device(device)
    }

    /// Returns a replica that is wanted.
    pub fn replica(&self, id: ReplicaId) -> Option<&Replica<Arc<Program>>> {
        self.state.rollout.get(id)
    }

    /// Returns the number of replicas of earlier plans that are still wanted; 0 once the plan is rolled out.
    pub fn earlier_replicas(&self) -> usize {
        self.state.rollout.earlier_count()
    }

    /// Returns the status of a replica that its node last reported, if it did.
    pub fn replica_status(&self, replica: &Replica<Arc<Program>>) -> Option<&ReplicaStatus> {
        self.state.status(replica)
    }

    /// Returns the state of the data plane's link to a replica; `None` if the data plane was not told to serve it.
    pub fn link(&self, replica: ReplicaId) -> Option<&LinkState> {
        self.state.links.get(&replica)
    }

    /// Returns the nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &Node)> {
        self.state.nodes.iter()
    }

    /// Returns a node.
    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.state.nodes.get(name)
    }

    /// Returns the kind of a device; `None` if its node no longer reports it.
    pub fn device_kind(&self, device: &DeviceId) -> Option<&DeviceKind> {
        self.state.kind(device)
    }

    /// Returns the current plan; `None` before the first.
    pub fn plan(&self) -> Option<&PlanRecord> {
        self.state.plan.record.as_deref()
    }

    /// Returns the newest forecasts of the current plan, by model.
    pub fn forecasts(&self) -> &BTreeMap<ModelId, Forecast> {
        &self.state.plan.forecasts
    }

    /// Returns the name of the placement policy.
    pub fn policy(&self) -> &str {
        &self.state.policy
    }

    /// Returns the options of the placement policy.
    pub fn options(&self) -> PolicyOptions {
        self.state.options
    }

    /// Returns the dispatch discipline.
    pub fn discipline(&self) -> Discipline {
        self.state.discipline
    }

    /// Returns all profiles.
    pub fn profiles(&self) -> &ProfileTable {
        &self.state.profiles
    }

    /// Returns the kinds of device on which measuring the model failed since the start of the gateway. There it is not measured again.
    pub fn measuring_failed_on(&self, model: &ModelId) -> impl Iterator<Item = &DeviceKind> {
        self.state.measurements.failed_on(model)
    }

    /// Returns the times of a model's batches, in its profiles and as they were observed, by kind of device and batch size.
    pub fn batch_times(&self, model: &ModelId) -> Vec<BatchTime> {
        let mut all = sightings(self.state.observer.observations());
        let sightings = all.remove(model).unwrap_or_default();
        self.state.batch_times(self.now(), model, &sightings)
    }

    /// Returns the measured pairs of a kind of device.
    pub fn pairs(&self, kind: &DeviceKind) -> Option<&PairTable> {
        self.state.pairs.get(kind)
    }

    /// Returns the findings of the last sample.
    pub fn findings(&self) -> &[Finding] {
        self.announcements.present_findings()
    }

    /// Returns the incidents since the start of the process, as far as they are kept: those that are not over first, then those that cost the most requests,
    /// then the newest.
    pub fn incidents(&self) -> impl Iterator<Item = &Incident> {
        self.incidents.all()
    }

    /// Returns the number of measurements that are assigned to a device, and of those that wait for one.
    pub fn measurements(&self) -> (usize, usize) {
        self.state.measurements.counts()
    }
}
