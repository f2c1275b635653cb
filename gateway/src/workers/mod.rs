//! The workers.
