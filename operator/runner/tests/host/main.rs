//! The hosts, driven over its socket as a runner drives it: real processes, a table of
//! programs, tools answered by the test.

mod driver;
mod limits;
mod programs;
mod python;
mod ruby;
mod surface;
mod tools;
mod values;
