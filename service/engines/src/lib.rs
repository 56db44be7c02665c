//! What each language promises the model: the names under which programs call tools, the
//! declarations of those tools, and the instructions for writing programs.
//!
//! Nothing here runs a program. What is promised here is kept by the language's host in the runner;
//! `tests/conformance` holds the two together.

mod declare;
mod engine;
mod javascript;
mod names;
mod notation;
mod prompt;
mod python;
mod ruby;
mod schemas;
mod text;

pub use engine::{ALL, Description, Engine, EngineOption, Error, by_language, by_name};
pub use names::{Alias, NameError, RESERVED};
