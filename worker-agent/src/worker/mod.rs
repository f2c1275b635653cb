//! Packhorse worker.
