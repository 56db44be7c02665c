//! Messages of the API to the types inside, and back.
//!
//! [`requests`] parses once, at the edge: inside, types are true. [`records`] writes what is inside,
//! and [`shape`] holds it to the size that clients with default settings take.

pub mod records;
pub mod requests;
pub mod shape;
