//! Passes over pools and sandboxes against an API server in memory: what is asked of it, and in which
//! order. What the real one does is tested on a real one.

mod pools;
mod sandboxes;
mod server;
mod world;
