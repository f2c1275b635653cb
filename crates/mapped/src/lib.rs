//! Memory that two processes of one host share, each for the bytes that it sends.
//!
//! The sender has an [`Arena`]: a memory file that it alone can write, mapped as long as it lives, and divided into ranges. It passes
//! the file's descriptor over a Unix socket ([`send_with_descriptors`]). The receiver maps the file as a [`View`], from which it copies ranges,
//! or lets foreign code read them.
//! The file is sealed: it can neither shrink, which would kill the receiver at its next read, nor grow, and nobody can map it for
//! writing any more.
//!
//! This is one of the two folders with `unsafe`: a mapping is memory that the compiler knows nothing of, and a descriptor is a number.
#![expect(
    unsafe_code,
    reason = "mapped memory, and descriptors from a socket, are outside of what the compiler knows"
)]

mod arena;
mod mapping;
mod passing;
mod ranges;
mod view;

pub use arena::{Arena, ArenaBytes};
pub use passing::{peer_uid, receive_with_descriptors, send_with_descriptors};
pub use view::{OutOfRange, View};
