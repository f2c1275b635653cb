//! The Open Inference Protocol over HTTP.
