//! The files that an interpreter and its programs may read (Landlock).
//!
//! An interpreter reads its library while programs run, so its hosts can't go without files as those of
//! JavaScript do. In a pod they share a folder tree with the runner, which has the link's token in it.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};

/// Whether the kernel has Landlock switched on.
pub fn has_landlock() -> bool {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag the call takes no memory and only tells a version number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) > 0 }
}

/// The rules by which nothing but what is beneath these paths can be read or executed, and nothing be
/// written. Paths that aren't there are left out. Nothing where the kernel has no Landlock.
pub fn rules(paths: &[PathBuf]) -> io::Result<Option<OwnedFd>> {
    let abi = ABI::V5;
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))
        .and_then(|ruleset| ruleset.create())
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(paths, AccessFs::from_read(abi))));
    ruleset.map(Option::from).map_err(io::Error::other)
}

/// Puts rules on the calling process, for good. Makes nothing but system calls, so it is fit for between fork
/// and exec.
pub fn restrict(rules: RawFd) -> io::Result<()> {
    // SAFETY: both calls take integers and touch no memory of ours.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::syscall(libc::SYS_landlock_restrict_self, rules, 0) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}
