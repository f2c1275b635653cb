//! Packhorse agent.
