//! The parts that gateway and agent have in common as services: the flags and the format of the log, the state folder, the user's data
//! folder, in which state folders are by default, and the addresses of the machine.

mod data_home;
mod log;
mod state_dir;
mod this_machine;

pub use data_home::DataHome;
pub use log::{LogError, LogFormat, LogOptions};
pub use state_dir::{StateDir, StateDirError, create_private_dir};
pub use this_machine::is_of_this_machine;
