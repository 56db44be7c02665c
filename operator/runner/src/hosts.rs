//! Hosts: the processes that interpret one program each.

pub mod javascript;
