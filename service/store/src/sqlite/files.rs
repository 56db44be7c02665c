//! The store's files: its directory, who may read them, and the lock that keeps a second process
//! out.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another store has it open, in this process or another.
    #[error("the store {path} is in use by {holder}; a store has one owner at a time")]
    Locked {
        /// The database.
        path: PathBuf,
        /// What the holder wrote into the lock file, such as "process 4711".
        holder: String,
    },
    /// A newer version of this program wrote it.
    #[error(
        "the store {path} has schema {found}; this version knows schemas up to {known}: use the newer version"
    )]
    NewerSchema {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: usize,
        /// The newest schema that is known here.
        known: usize,
    },
    /// The file is a database of something else.
    #[error("{path} is no store of ours: {message}")]
    NotOurs {
        /// The database.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A file could not be made, opened or locked.
    #[error("{doing} {path} failed")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The database failed.
    #[error("{doing} failed")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The lock on a store; held until it is dropped, or the process ends in any way.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// Makes the directory and the database file, for their owner only, and takes the lock.
pub(super) fn prepare(path: &Path) -> Result<Lock, OpenError> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(file_error("making the directory", directory))?;
    }
    let lock = lock(path)?;
    let database = private(path)?;
    // SQLite gives the log and its index the database's permissions.
    database
        .set_permissions(Permissions::from_mode(0o600))
        .map_err(file_error("making private the file", path))?;
    Ok(lock)
}

pub(super) fn database_error(
    doing: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> OpenError {
    OpenError::Database { doing, source: source.into() }
}

fn lock(path: &Path) -> Result<Lock, OpenError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let mut file = private(&lock_path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(OpenError::Locked { path: path.to_owned(), holder: holder(&mut file) });
        }
        Err(TryLockError::Error(source)) => return Err(file_error("locking", &lock_path)(source)),
    }
    let named = file.set_len(0).and_then(|()| writeln!(file, "process {}", std::process::id()));
    named.map_err(file_error("writing", &lock_path))?;
    Ok(Lock { _file: file })
}

/// Who holds the lock, as far as can be told: the holder may be about to write it.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(64).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

fn private(path: &Path) -> Result<File, OpenError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(file_error("opening", path))
}

fn file_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::File { doing, path, source }
}
