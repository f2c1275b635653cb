//! The parts that gateway and agent have in common as services: the flags and the format of the log, the state folder, the user's
//! data folder, in which state folders and libtorch are by default, the addresses of the machine, the program that has started the
//! service, the users that programs run as, the limit of file descriptors, and its manual page.

mod data_home;
mod descriptor_limit;
mod hang_up;
mod libtorch;
mod log;
mod manual;
mod state_dir;
mod supervisor;
mod system_user;
mod this_machine;

pub use data_home::DataHome;
pub use descriptor_limit::raise_descriptor_limit;
pub use hang_up::survive_hang_up;
pub use libtorch::{LIBTORCH_VERSION, Libtorch, LibtorchBuild};
pub use log::{LogError, LogFormat, LogOptions};
pub use manual::print_manual_page;
pub use state_dir::{StateDir, StateDirError, create_private_dir};
pub use supervisor::{Supervisor, SupervisorOptions};
pub use system_user::{SystemUser, UnknownUser, WORKER_USER};
pub use this_machine::is_of_this_machine;
