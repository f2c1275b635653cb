//! The control plane from HTTP to SQLite: a whole gateway with its own state folder, scripted agents, and scripted workers.

mod agents;
mod artifacts;
mod audit;
mod auth;
mod backup;
mod consequences;
mod dashboard;
mod events;
mod findings;
mod history;
mod keys;
mod models;
mod openapi;
mod plans;
mod profiles;
mod rejected;
mod requests;
mod restart;
mod rollout;
mod routes;
mod sessions;
mod strangers;
mod versions;
mod web_pages;
