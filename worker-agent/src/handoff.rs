//! Hand-over.
