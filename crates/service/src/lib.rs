//! The parts that gateway and agent have in common as services: the flags and the format of the log, the state folder, and the user's
//! data folder, in which state folders are by default.

mod data_home;
mod log;
mod state_dir;

pub use data_home::DataHome;
pub use log::{LogError, LogFormat, LogOptions};
pub use state_dir::{StateDir, StateDirError, create_private_dir};
