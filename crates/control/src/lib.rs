//! Packhorse.
