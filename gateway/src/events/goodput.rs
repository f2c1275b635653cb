//! The `goodput` event of every second.

use std::time::Duration;

use packhorse_api::{GoodputView, events::GOODPUT_EVENT};
use tokio::time::{MissedTickBehavior, interval};

use super::{frame::frame, log::EventLog};
use crate::{driver::DataPlane, tasks::Tasks};

/// The time between two `goodput` events, and the length of their window.
pub(crate) const GOODPUT_PERIOD: Duration = Duration::from_secs(1);

impl EventLog {
    /// Starts the task that gives the readers the goodput of every second, until the log is closed.
    pub(crate) fn report_goodput(&self, data_plane: DataPlane, tasks: &Tasks) {
        let events = self.clone();
        tasks.spawn("goodput ticker", async move {
            let mut ticks = interval(GOODPUT_PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                tokio::select! {
                    () = events.stop().cancelled() => return,
                    _ = ticks.tick() => {}
                }
                // Nobody reads most of the time; then nothing is added up.
                if events.has_readers() {
                    let data = serde_json::to_string(&last_second(&data_plane));
                    let data = data.expect("our own messages are JSON");
                    events.set_goodput(&frame(None, GOODPUT_EVENT, &data));
                }
            }
        });
    }
}

/// Returns the goodput of the last second.
pub(crate) fn last_second(data_plane: &DataPlane) -> GoodputView {
    let models = data_plane.goodput(GOODPUT_PERIOD);
    GoodputView::new(GOODPUT_PERIOD.as_secs_f64(), models)
}
