//! What a runner has to know of the engine it offers.

use std::ffi::OsString;
use std::path::PathBuf;

/// An engine: how its warm parent is started, and what can be said of its hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// The languages of the programs that it runs.
    pub languages: &'static [&'static str],
    /// The program that its warm parent is, and all arguments.
    pub command: Vec<OsString>,
    /// The stack of its hosts, in bytes. Only what is used of it is ever real.
    pub stack_bytes: u64,
    /// What its warm parent and hosts may read, where the kernel has Landlock; everything else can't even be
    /// opened. Nothing where they see to that themselves.
    pub readable: Option<Vec<PathBuf>>,
    /// The names of what confines its hosts on this kernel.
    pub confinement: Vec<String>,
}
