//! What a session is: ids, limits, records, events, the session machine, and the ports through
//! which it meets the world. Nothing here does IO.

pub mod catalog;
pub mod event;
pub mod ids;
pub mod limits;
pub mod link;
pub mod machine;
pub mod program;
pub mod reasons;
pub mod sandbox;
pub mod session;
pub mod store;
pub mod text;
pub mod time;
pub mod value;
