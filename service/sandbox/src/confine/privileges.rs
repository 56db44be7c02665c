//! Users, capabilities and keys: after this the runner has none that mean anything.

use std::fs;

use caps::CapSet;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, getegid, geteuid, setgroups, setresgid, setresuid};

use super::{At, Error, Result};

/// The runner's user and group as it sees them.
const INSIDE_ID: u32 = 1000;

/// Makes a user namespace in which this process' own user is all there is.
pub(super) fn enter_user_namespace() -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER).at("user namespace")?;
    // Groups can't be dropped any more after this, and the map of groups can't be written before.
    fs::write("/proc/self/setgroups", "deny").at("user namespace")?;
    fs::write("/proc/self/uid_map", format!("{INSIDE_ID} {uid} 1")).at("user namespace")?;
    fs::write("/proc/self/gid_map", format!("{INSIDE_ID} {gid} 1")).at("user namespace")
}

/// Gives up root for a user that owns nothing, so that the sandbox isn't root outside either.
pub(super) fn become_nobody(uid: u32) -> Result<()> {
    setgroups(&[]).at("user")?;
    let gid = Gid::from_raw(uid);
    setresgid(gid, gid, gid).at("user")?;
    let uid = Uid::from_raw(uid);
    setresuid(uid, uid, uid).at("user")?;
    // Changing users made /proc/self root's, and the maps are written there.
    prctl::set_dumpable(true).at("user")
}

/// Leaves the keys of the session that the service runs in.
pub(super) fn leave_keyring() -> Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    let no_name = std::ptr::null::<libc::c_char>();
    // SAFETY: with no name the call reads no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, no_name) };
    match Errno::result(result) {
        // A kernel without keys has none to leave; a container's filter denies all key calls.
        Ok(_) | Err(Errno::ENOSYS | Errno::EPERM) => Ok(()),
        Err(error) => Err(error).at("keyring"),
    }
}

/// Drops every capability for good.
pub(super) fn drop_all() -> Result<()> {
    let sets = [CapSet::Bounding, CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted];
    for set in sets {
        caps::clear(None, set).map_err(|error| Error {
            step: "capabilities",
            source: std::io::Error::other(error.to_string()),
        })?;
    }
    prctl::set_no_new_privs().at("no new privileges")
}
