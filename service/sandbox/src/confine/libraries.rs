//! Which shared libraries a runner needs, so that these and no others are put into its sandbox.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the loader may print before we stop reading, in bytes.
const LISTING_BYTES_MAX: u64 = 64 * 1024;
const LIBRARIES_MAX: usize = 64;
const PROGRAM_HEADERS_MAX: u64 = 256;
const PT_INTERP: u32 = 3;

/// The libraries of a binary and its loader, by the paths at which the loader looks; none for a
/// static one. The binary is ours: its loader is run to tell.
pub(crate) fn needed_by(binary: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(loader) = loader_of(binary)? else { return Ok(Vec::new()) };
    let mut child = Command::new(binary)
        .env_clear()
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut listing = String::new();
    let output = child.stdout.take().expect("it was asked for");
    output.take(LISTING_BYTES_MAX).read_to_string(&mut listing)?;
    let status = child.wait()?;
    if !status.success() || listing.contains("not found") {
        return Err(io::Error::other(format!("the loader of {} misses a library", binary.display())));
    }
    let mut libraries = vec![loader];
    libraries.extend(listing.lines().filter_map(path_in));
    libraries.sort();
    libraries.dedup();
    if libraries.len() > LIBRARIES_MAX {
        return Err(io::Error::other(format!("{} needs {} libraries", binary.display(), libraries.len())));
    }
    Ok(libraries)
}

/// The path in `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)`.
fn path_in(line: &str) -> Option<PathBuf> {
    let (_, found) = line.split_once("=> ")?;
    let (path, _) = found.rsplit_once(" (")?;
    path.starts_with('/').then(|| PathBuf::from(path))
}

fn loader_of(binary: &Path) -> io::Result<Option<PathBuf>> {
    let file = File::open(binary)?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(io::Error::other(format!("{} is no 64-bit little-endian binary", binary.display())));
    }
    let table = u64_at(&header, 32);
    let size = u64::from(u16_at(&header, 54));
    let n = u64::from(u16_at(&header, 56)).min(PROGRAM_HEADERS_MAX);
    for index in 0..n {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.saturating_add(index * size))?;
        if u32_at(&entry, 0) != PT_INTERP {
            continue;
        }
        let length = usize::try_from(u64_at(&entry, 32)).unwrap_or(usize::MAX).min(4096);
        let mut path = vec![0; length];
        file.read_exact_at(&mut path, u64_at(&entry, 8))?;
        let path = String::from_utf8_lossy(&path).trim_end_matches('\0').to_owned();
        return Ok(Some(PathBuf::from(path)));
    }
    Ok(None)
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_needs_the_c_library_and_a_loader() {
        let libraries = needed_by(&std::env::current_exe().unwrap()).unwrap();
        let names: Vec<_> = libraries.iter().map(|path| path.to_string_lossy()).collect();
        assert!(names.iter().any(|name| name.contains("libc.so")), "{names:?}");
        assert!(names.iter().any(|name| name.contains("ld-linux")), "{names:?}");
        assert!(libraries.iter().all(|path| path.is_file()), "{names:?}");
    }

    #[test]
    fn what_is_no_binary_is_refused() {
        assert!(needed_by(Path::new("/proc/self/status")).is_err());
        assert!(needed_by(Path::new("/nowhere")).is_err());
    }
}
