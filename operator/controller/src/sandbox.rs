//! What becomes of one Sandbox: its pod, and what is told about it.

pub mod assign;
pub mod decide;
pub mod ended;
pub mod reconcile;
pub mod started;
