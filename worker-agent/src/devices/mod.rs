//! Packhorse devices.
