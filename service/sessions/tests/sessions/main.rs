//! Sessions as a whole, over a fake backend and the memory store, with the clock stopped: what the
//! session contract says, and a simulation with faults.

mod calls;
mod closing;
mod controls;
mod idempotency;
mod observing;
mod restarts;
mod sandboxes;
mod simulation;
mod store_faults;
mod support;
