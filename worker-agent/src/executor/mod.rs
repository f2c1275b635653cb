//! Packhorse executor.
