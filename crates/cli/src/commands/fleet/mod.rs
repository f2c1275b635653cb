//! A fleet in a folder: it is read, prepared for the comparison with the cluster, and carried out. `packhorse apply` and `packhorse serve` do so.

mod carry_out;
mod declare;
mod folder;

pub(super) use self::{
    carry_out::{Outcome, carry_out, upload_files},
    declare::{Declared, Undescribed, declare, registered},
    folder::FleetFolder,
};
