//! The telemetry.
