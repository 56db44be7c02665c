//! The runner, driven over a real link as the service drives it: real processes, real sockets.

mod faults;
mod frames;
mod programs;
mod service;
