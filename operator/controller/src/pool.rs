//! What becomes of a pool: how many sandboxes it should have, which of them go, and how it is told.

pub mod decide;
pub mod events;
pub mod expect;
pub mod member;
pub mod prepare;
pub mod reconcile;
pub mod status;
