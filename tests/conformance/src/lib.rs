//! The conformance suite: the acceptance lists as data, run through a door of the product against
//! a backend.
//!
//! `data/program` has the program cases, `data/contract` the lines of the session contract that
//! bind JavaScript, each as sessions with steps and what must be seen. What simple data can't say
//! is a scenario in Rust, named by the case. `data/elsewhere.toml` says of every line that the API
//! can't show where it is tested instead, and `data/unbuilt.toml` which lines are a later issue's;
//! a test counts that no line is missing.

pub mod case;
pub mod door;
pub mod fixtures;
pub mod live;
pub mod plan;
pub mod provider;
pub mod report;
pub mod run;
pub mod scenarios;
pub mod seen;
pub mod service;
pub mod steps;
