//! The files inside: an empty root with the runner, what it needs and four devices, all read-only,
//! processes of the own namespace, and one sized folder that can be written.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::pivot_root;

use super::{At, Error, Plan, RUNNER_PATH, Result};

/// Where the new root is put together. It exists wherever a service runs, and what is needed of
/// it is opened before it is covered.
const STAGE: &str = "/dev";
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
/// Only folders and the names that files are bound to.
const ROOT_OPTIONS: &str = "size=256k,nr_inodes=512,mode=755";
/// Files and folders that can be made inside.
const SCRATCH_INODES_MAX: u32 = 4096;

/// A file or folder outside that will be at `inside`.
struct Bind {
    source: File,
    inside: PathBuf,
    device: bool,
}

/// Leaves the machine's files for those of the sandbox, and stands in the folder that can be
/// written. `uid` owns it, or this process' own user.
pub(super) fn enter(plan: &Plan, uid: Option<u32>) -> Result<()> {
    nothing_shared()?;
    let binds = sources(plan)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), STAGE, Some("tmpfs"), flags, Some(ROOT_OPTIONS)).at("root filesystem")?;
    for bind in &binds {
        place(bind)?;
    }
    mount_proc()?;
    mount_scratch(plan.scratch_bytes, uid)?;
    turn_root()?;
    let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).at("root filesystem")?;
    std::env::set_current_dir("/work").at("work folder")
}

/// No mount or unmount here is seen outside, or the other way round.
fn nothing_shared() -> Result<()> {
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).at("private mounts")
}

fn sources(plan: &Plan) -> Result<Vec<Bind>> {
    let open = |path: &Path, inside: &Path, device| {
        let source = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
        Ok(Bind { source: source.at("runner and libraries")?, inside: inside.to_owned(), device })
    };
    let mut binds = vec![open(&plan.program, Path::new(RUNNER_PATH), false)?];
    for file in &plan.files {
        binds.push(open(file, file, false)?);
    }
    for device in DEVICES {
        binds.push(open(Path::new(device), Path::new(device), true)?);
    }
    Ok(binds)
}

fn staged(inside: &Path) -> PathBuf {
    Path::new(STAGE).join(inside.strip_prefix("/").unwrap_or(inside))
}

fn place(bind: &Bind) -> Result<()> {
    let target = staged(&bind.inside);
    if bind.source.metadata().at("bind mounts")?.is_dir() {
        fs::create_dir_all(&target).at("root filesystem")?;
    } else {
        fs::create_dir_all(target.parent().unwrap_or(&target)).at("root filesystem")?;
        File::create(&target).at("root filesystem")?;
    }
    let source = format!("/proc/self/fd/{}", bind.source.as_raw_fd());
    let nothing = None::<&str>;
    mount(Some(source.as_str()), &target, nothing, MsFlags::MS_BIND, nothing).at("bind mounts")?;
    let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | kept(&bind.source)?;
    flags |= if bind.device { MsFlags::MS_NOEXEC } else { MsFlags::MS_RDONLY | MsFlags::MS_NODEV };
    mount(nothing, &target, nothing, flags, nothing).at("bind mounts")
}

/// What the mount outside forbids, which a user namespace may not allow again.
fn kept(source: &File) -> Result<MsFlags> {
    let flags = fstatvfs(source).at("bind mounts")?.flags();
    let pairs = [
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ];
    Ok(pairs.into_iter().filter(|(has, _)| flags.contains(*has)).map(|(_, keep)| keep).collect())
}

/// Only processes. The sandbox has its own alone, and the runner has to see how large its hosts are, which
/// `hidepid` would hide with them: they let nobody look into them.
fn mount_proc() -> Result<()> {
    let target = staged(Path::new("/proc"));
    fs::create_dir(&target).at("root filesystem")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &target, Some("proc"), flags, Some("subset=pid")).at("proc filesystem")
}

fn mount_scratch(bytes: u64, uid: Option<u32>) -> Result<()> {
    let target = staged(Path::new("/work"));
    fs::create_dir(&target).at("root filesystem")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let mut options = format!("size={bytes},nr_inodes={SCRATCH_INODES_MAX},mode=700");
    if let Some(uid) = uid {
        options.push_str(&format!(",uid={uid},gid={uid}"));
    }
    mount(Some("tmpfs"), &target, Some("tmpfs"), flags, Some(options.as_str())).at("work folder")?;
    std::os::unix::fs::symlink("work", staged(Path::new("/tmp"))).at("root filesystem")
}

fn turn_root() -> Result<()> {
    std::env::set_current_dir(STAGE).at("new root")?;
    // Both at one place: the old root lies over the new one until it is taken off.
    pivot_root(".", ".").at("new root")?;
    umount2(".", MntFlags::MNT_DETACH).at("new root")?;
    std::env::set_current_dir("/").at("new root")
}

/// The same again by Landlock, where the kernel has it: reading and executing what is there,
/// writing in the work folder and to devices, no network ports, no signals or abstract sockets
/// to others. Says whether it is in force.
pub(super) fn restrict() -> Result<bool> {
    let restricted = || -> std::result::Result<_, Box<dyn std::error::Error + Send + Sync>> {
        // Rules of newer kernels are left out by older ones, one by one.
        let abi = ABI::V6;
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rule(PathBeneath::new(PathFd::new("/")?, AccessFs::from_read(abi)))?
            .add_rule(PathBeneath::new(PathFd::new("/work")?, AccessFs::from_all(abi)))?;
        for device in DEVICES {
            let writable = AccessFs::WriteFile | AccessFs::ReadFile;
            ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(device)?, writable))?;
        }
        Ok(ruleset.restrict_self()?)
    };
    let status =
        restricted().map_err(|error| Error { step: "landlock", source: std::io::Error::other(error) })?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}
