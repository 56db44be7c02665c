//! Who calls: bearer tokens, kept as hashes in a file, each for one tenant; in a cluster, tokens of its
//! service accounts too ([`reviews`]).
//!
//! A token is 32 random bytes, so its SHA-256 needs no salt and no slow hash. Whoever reads the file
//! can't call with what is in it.

pub mod reviews;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use seance_core::ids::TenantId;
use seance_core::reasons;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::status::Refusal;
use reviews::Reviews;

/// The most tokens in a file.
pub const TOKENS_MAX: usize = 4_096;
/// The largest tokens file, in bytes.
pub const TOKENS_FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How often the file is looked at: a token that is taken out is refused after this time.
pub const TOKENS_FILE_LOOK: Duration = Duration::from_secs(2);

const TOKEN_PREFIX: &str = "seance_";
const NAME_CHARS_MAX: usize = 128;

/// Why a tokens file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be read.
    #[error("tokens file {} can't be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is larger than [`TOKENS_FILE_BYTES_MAX`] or has more than [`TOKENS_MAX`] tokens.
    #[error("tokens file {} is over its limit of {TOKENS_MAX} tokens and {TOKENS_FILE_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is no list of tokens.
    #[error("tokens file {} is wrong: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line; never a hash.
        message: String,
    },
    /// The system gives no random bytes.
    #[error("the system gave no random bytes: {0}")]
    NoRandom(getrandom::Error),
}

/// Why a caller is not let in.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// The request has no valid credentials. Which part is wrong is not said.
    #[error("the request has no valid credentials; send `authorization: Bearer <token>`")]
    Refused,
    /// Nobody can tell now whether they are valid.
    #[error("the cluster's API server can't say now whether the token is valid; try again")]
    Unavailable,
}

impl Refusal for Denied {
    fn reason(&self) -> &'static str {
        match self {
            Denied::Refused => reasons::UNAUTHENTICATED,
            Denied::Unavailable => reasons::AUTHENTICATION_UNAVAILABLE,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct TokenHash([u8; 32]);

impl TokenHash {
    fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Takes the same time for every pair.
    fn same(&self, other: &Self) -> bool {
        let differing = self.0.iter().zip(other.0).fold(0_u8, |seen, (a, b)| seen | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl FromStr for TokenHash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| "sha256 is not 64 hexadecimal digits")?;
        Ok(Self(bytes))
    }
}

struct Entry {
    hash: TokenHash,
    tenant: TenantId,
}

/// The tokens of a file.
#[derive(Default)]
pub struct Tokens(Vec<Entry>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    #[serde(default)]
    token: Vec<EntryForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryForm {
    sha256: String,
    tenant: String,
    #[serde(default)]
    name: String,
}

impl Tokens {
    /// Reads a tokens file: TOML with `[[token]]` tables of `sha256`, `tenant` and a `name` for people.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > TOKENS_FILE_BYTES_MAX {
            return Err(Error::TooLarge { path: path.to_owned() });
        }
        Self::parse(&std::fs::read_to_string(path).map_err(failed)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let malformed = |message| Error::Malformed { path: path.to_owned(), message };
        // The parser's own message would quote the line, and the line has a hash.
        let form: FileForm = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
            malformed(format!("line {at}: {}", error.message()))
        })?;
        if form.token.len() > TOKENS_MAX {
            return Err(Error::TooLarge { path: path.to_owned() });
        }
        let mut entries = Vec::with_capacity(form.token.len());
        for (index, entry) in form.token.iter().enumerate() {
            let wrong = |what: &dyn fmt::Display| malformed(format!("token {}: {what}", index + 1));
            let hash = entry.sha256.parse().map_err(|error| wrong(&error))?;
            let tenant = entry.tenant.parse().map_err(|error| wrong(&error))?;
            if entry.name.chars().count() > NAME_CHARS_MAX {
                return Err(wrong(&"name is too long"));
            }
            entries.push(Entry { hash, tenant });
        }
        Ok(Self(entries))
    }

    /// The tenant of a token. Looks at every entry, so that the time tells nothing.
    fn tenant(&self, token: &str) -> Option<&TenantId> {
        let hash = TokenHash::of(token);
        self.0
            .iter()
            .fold(None, |found, entry| if entry.hash.same(&hash) { Some(&entry.tenant) } else { found })
    }
}

/// How callers are told apart.
#[derive(Clone)]
pub enum Access {
    /// Everyone who can connect is the tenant `default`: loopback, or this process itself.
    Open,
    /// By bearer token.
    Bearer {
        /// Tokens of a file.
        tokens: Option<watch::Receiver<Arc<Tokens>>>,
        /// Tokens of a cluster's service accounts.
        reviews: Option<Arc<Reviews>>,
    },
}

impl Access {
    /// The tenant of a request with these headers.
    ///
    /// Cancel-safe.
    pub async fn tenant(&self, headers: &HeaderMap) -> Result<TenantId, Denied> {
        let Access::Bearer { tokens, reviews } = self else { return Ok(TenantId::default_tenant()) };
        let token = bearer(headers).ok_or(Denied::Refused)?;
        let tokens = tokens.as_ref().map(|tokens| Arc::clone(&tokens.borrow()));
        match (tokens.as_ref().and_then(|tokens| tokens.tenant(token)), reviews) {
            (Some(tenant), _) => Ok(tenant.clone()),
            (None, Some(reviews)) => reviews.tenant(token).await,
            (None, None) => Err(Denied::Refused),
        }
    }
}

/// The one bearer token of a request; none when there is no or more than one authorization.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(http::header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

/// A tokens file that is read again whenever it changes. A file that has become unreadable or wrong
/// leaves the tokens as they were, and the log says so.
pub struct TokensFile {
    path: PathBuf,
    seen: Option<ChangedAt>,
    sender: watch::Sender<Arc<Tokens>>,
}

impl TokensFile {
    /// Reads the file. What is read later reaches the receiver too, while [`TokensFile::watch`] runs.
    pub fn open(path: PathBuf) -> Result<(Self, watch::Receiver<Arc<Tokens>>), Error> {
        let seen = changed_at(&path);
        let (sender, receiver) = watch::channel(Arc::new(Tokens::read(&path)?));
        Ok((Self { path, seen, sender }, receiver))
    }

    /// Looks at the file every [`TOKENS_FILE_LOOK`] until nobody has its tokens any more.
    pub async fn watch(mut self) {
        let mut look = tokio::time::interval(TOKENS_FILE_LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = look.tick() => self.look(),
                () = self.sender.closed() => return,
            }
        }
    }

    fn look(&mut self) {
        let now = changed_at(&self.path);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match Tokens::read(&self.path) {
            Ok(tokens) => {
                tracing::info!(n_tokens = tokens.0.len(), "tokens file was read again");
                self.sender.send_replace(Arc::new(tokens));
            }
            Err(error) => {
                tracing::error!(%error, "tokens file changed and can't be used; the tokens stay as they were");
            }
        }
    }
}

/// What changes when a file is written or replaced: its time, length and inode.
pub(crate) type ChangedAt = (SystemTime, u64, u64);

/// What there is of it now; none for a file that can't be had.
pub(crate) fn changed_at(path: &Path) -> Option<ChangedAt> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

/// A new token and what to append to the tokens file for it.
pub struct MintedToken {
    /// The token itself. It is nowhere else; show it once.
    pub token: String,
    /// The table for the tokens file, with its hash.
    pub file_entry: String,
}

/// Makes a token for a tenant. The name is for people.
pub fn mint_token(tenant: &TenantId, name: &str) -> Result<MintedToken, Error> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(Error::NoRandom)?;
    let token = format!("{TOKEN_PREFIX}{}", hex::encode(secret));
    let entry = EntryForm {
        sha256: hex::encode(TokenHash::of(&token).0),
        tenant: tenant.to_string(),
        name: name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect(),
    };
    let file_entry =
        toml::to_string(&FileForm { token: vec![entry] }).expect("strings always have a TOML form");
    Ok(MintedToken { token, file_entry })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(http::header::AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    fn tokens_of(text: &str) -> Result<Tokens, Error> {
        Tokens::parse(text, Path::new("tokens.toml"))
    }

    fn tenant(access: &Access, values: &[&str]) -> Option<String> {
        let tenant = access.tenant(&headers(values)).now_or_never().expect("nobody else is asked");
        tenant.map(|tenant| tenant.to_string()).ok()
    }

    #[test]
    fn a_minted_token_gives_its_tenant_and_nothing_else_does() {
        let one = mint_token(&"team-1".parse().unwrap(), "ci\n").unwrap();
        let two = mint_token(&"team-2".parse().unwrap(), "").unwrap();
        assert!(!one.file_entry.contains(&one.token));
        let file = format!("{}{}", one.file_entry, two.file_entry);
        let (_sender, receiver) = watch::channel(Arc::new(tokens_of(&file).unwrap()));
        let access = Access::Bearer { tokens: Some(receiver), reviews: None };
        let tenant = |values: &[&str]| tenant(&access, values);
        let bearer = |token: &str| format!("Bearer {token}");
        assert_eq!(tenant(&[&bearer(&one.token)]).unwrap(), "team-1");
        assert_eq!(tenant(&[&format!("bearer {}", two.token)]).unwrap(), "team-2");
        let upper = one.token.to_uppercase();
        for wrong in
            ["", "Bearer", "Bearer ", "Basic x", &one.token, &bearer(&upper), &bearer(&one.token[..70])]
        {
            assert_eq!(tenant(&[wrong]), None, "{wrong:?}");
        }
        assert_eq!(tenant(&[]), None);
        assert_eq!(tenant(&[&bearer(&one.token), &bearer(&two.token)]), None);
    }

    #[test]
    fn without_tokens_everyone_is_the_default_tenant() {
        assert_eq!(tenant(&Access::Open, &[]).unwrap(), TenantId::default_tenant().as_str());
    }

    #[test]
    fn a_wrong_file_is_refused_without_showing_its_hashes() {
        let hash = "ab".repeat(32);
        for (text, says) in [
            ("[[token]]\nsha256 = \"12\"\ntenant = \"a\"".to_owned(), "token 1: sha256"),
            (format!("[[token]]\nsha256 = \"{hash}\"\ntenant = \"A b\""), "token 1: \"A b\""),
            (format!("[[token]]\nsha256 = \"{hash}\" {hash}"), "line 2"),
            (format!("[[token]]\nsha256 = \"{hash}\"\ntenant = \"a\"\nrole = \"x\""), "role"),
        ] {
            let error = tokens_of(&text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains(&hash), "{error}");
        }
        let many = format!("[[token]]\nsha256 = \"{hash}\"\ntenant = \"a\"\n").repeat(TOKENS_MAX + 1);
        assert!(matches!(tokens_of(&many), Err(Error::TooLarge { .. })));
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        let one = mint_token(&"team-1".parse().unwrap(), "").unwrap();
        let two = mint_token(&"team-2".parse().unwrap(), "longer name").unwrap();
        std::fs::write(&path, &one.file_entry).unwrap();
        let (mut file, tokens) = TokensFile::open(path.clone()).unwrap();
        let access = Access::Bearer { tokens: Some(tokens), reviews: None };
        let works = |token: &str| tenant(&access, &[&format!("Bearer {token}")]).is_some();
        assert!(works(&one.token) && !works(&two.token));
        std::fs::write(&path, &two.file_entry).unwrap();
        file.look();
        assert!(works(&two.token) && !works(&one.token));
        for broken in ["[[token", "[[token]]\nsha256 = 'x'\ntenant = 'a'"] {
            std::fs::write(&path, broken).unwrap();
            file.look();
            assert!(works(&two.token));
        }
        std::fs::remove_file(&path).unwrap();
        file.look();
        assert!(works(&two.token));
    }
}
