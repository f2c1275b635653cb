//! What admins do during a run: they drain nodes, and register and remove models.

use packhorse_cluster::{ModelIndex, Scheduling, Time};
use packhorse_control::Command;

use super::{control::model_spec, world::Simulation};

impl Simulation<'_> {
    /// Changes the scheduling of the node of this index.
    pub(super) fn schedule_node(&mut self, now: Time, node: usize, scheduling: Scheduling) {
        let command = Command::ScheduleNode(self.node(node), scheduling, None);
        self.command(now, command);
    }

    /// Registers a model.
    pub(super) fn add_model(&mut self, now: Time, model: ModelIndex) {
        let Some(control) = &self.control else {
            return;
        };
        let (demanded, rate_mode) = (
            &self.scenario.problem.models[model.0],
            control.replanning.rate_mode,
        );
        let spec = model_spec(self.scenario, demanded, rate_mode);
        self.command(now, Command::Register(Box::new(spec), 0));
    }

    /// Removes a model, whose clients have ended.
    pub(super) fn remove_model(&mut self, now: Time, model: ModelIndex) {
        let id = &self.scenario.problem.models[model.0].id;
        let command = Command::RemoveModel(id.name.clone(), Some(id.version));
        self.command(now, command);
    }

    /// Has the control plane execute a command, once there is a gateway.
    pub(super) fn command(&mut self, now: Time, command: Command) {
        if let Some(outage) = &mut self.outage {
            outage.commands.push(command);
        } else if let Some(control) = &mut self.control {
            control.command(now, command);
        }
    }
}
