//! The kind of a model's file, and the signature that it tells: read from its bytes, without libtorch and without running anything in it.
//!
//! TorchScript files, `AOTInductor` packages and exported programs are ZIP archives. Each tells names, datatypes and shapes in a place of its own,
//! and what `packhorse.export` has written has its whole registration in it. What a file does not tell is unknown here and is never guessed.
//!
//! Files are those of strangers. Every count and length has a limit that is checked before memory is allocated for it, an archive is never
//! unpacked, and pickles are read without making the objects that they name.

mod archive;
mod artifact;
mod call_spec;
mod exported;
mod file_kind;
mod package;
mod pickle;
mod read_sizes;
mod registration;
mod signature;
#[cfg(test)]
mod test_archive;
mod torchscript;

pub use archive::{Archive, ArchiveError};
pub use artifact::{Artifact, ReadError};
pub use file_kind::FileKind;
pub use package::Target;
pub use registration::{EmbeddedRegistration, RegistrationError};
pub use signature::{Format, Signature, Size, Tensor};
