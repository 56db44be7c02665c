//! What a cluster has and lacks of what sandboxes as pods need, looked at from outside with the rights of
//! whoever asks: `seance doctor --kubernetes`.
//!
//! Nothing is written, and every look has its own time. What can't be seen is told as unknown, never as
//! good. Whether network policies are enforced can't be read off a cluster; what is known of that stands
//! in the conditions of its pools.

mod crds;
mod nodes;
mod pools;
mod rights;

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};

/// The oldest minor version of Kubernetes 1 that has what the custom resources use.
const MINOR_MIN: u32 = 31;
/// How long one look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Objects of one kind that are looked at.
const OBJECTS_MAX: u32 = 100;
const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is there.
    Good,
    /// It is missing or wrong.
    Lacking,
    /// It can't be seen from here.
    Unknown,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The check's name, the same in every run.
    pub check: &'static str,
    /// What it is about: an object's name, or nothing.
    pub subject: String,
    /// How it went.
    pub outcome: Outcome,
    /// What was found, for people.
    pub message: String,
    /// What to do about it; nothing where all is well.
    pub remedy: String,
}

impl Finding {
    fn good(check: &'static str, subject: impl Into<String>, message: impl Into<String>) -> Self {
        let (subject, message) = (subject.into(), message.into());
        Self { check, subject, outcome: Outcome::Good, message, remedy: String::new() }
    }

    fn lacking(
        check: &'static str,
        subject: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (subject, message, remedy) = (subject.into(), message.into(), remedy.into());
        Self { check, subject, outcome: Outcome::Lacking, message, remedy }
    }

    fn unknown(
        check: &'static str,
        subject: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { outcome: Outcome::Unknown, ..Self::lacking(check, subject, message, remedy) }
    }
}

/// Why a cluster can't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    /// There is no cluster to be found.
    #[error("no cluster is configured: {0}")]
    Config(String),
    /// Its API server doesn't answer, or not to this caller.
    #[error("the API server can't be reached: {0}")]
    Unreachable(String),
}

/// A client of the cluster that `kubectl` would talk to with the same file and context.
pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ExamineError> {
    let error = |error: &dyn std::fmt::Display| ExamineError::Config(error.to_string());
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..Default::default() };
    let config = match (kubeconfig, context) {
        (None, None) => Config::infer().await.map_err(|failed| error(&failed))?,
        (path, _) => {
            let read = match path {
                Some(path) => Kubeconfig::read_from(path),
                None => Kubeconfig::read(),
            };
            let file = read.map_err(|failed| error(&failed))?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(|failed| error(&failed))?
        }
    };
    Client::try_from(config).map_err(|failed| error(&failed))
}

/// Looks at everything, in one namespace of sandboxes or, without one, wherever there are pools.
///
/// # Errors
///
/// [`ExamineError::Unreachable`] when the API server doesn't tell its version: then nothing else would be
/// seen either.
pub async fn examine(client: &Client, namespace: Option<&str>) -> Result<Vec<Finding>, ExamineError> {
    let version = within(client.apiserver_version()).await;
    let version = version.map_err(|error| ExamineError::Unreachable(error.to_string()))?;
    let mut findings = vec![of_version(&version.major, &version.minor)];
    findings.extend(crds::look(client).await);
    findings.extend(pools::look(client, namespace).await);
    findings.extend(nodes::look(client).await);
    findings.push(storage(client).await);
    findings.extend(rights::look(client).await);
    Ok(findings)
}

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("it took longer than {LOOK_TIMEOUT:?}")]
    TooSlow,
    #[error("{}", told(.0))]
    Kube(#[from] kube::Error),
}

/// The API server's own words, where it has said something.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        error => error.to_string(),
    }
}

impl LookError {
    fn code(&self) -> Option<u16> {
        match self {
            LookError::Kube(kube::Error::Api(status)) => Some(status.code),
            LookError::Kube(_) | LookError::TooSlow => None,
        }
    }
}

async fn within<T>(look: impl Future<Output = kube::Result<T>>) -> Result<T, LookError> {
    match tokio::time::timeout(LOOK_TIMEOUT, look).await {
        Ok(found) => Ok(found?),
        Err(_) => Err(LookError::TooSlow),
    }
}

fn some() -> ListParams {
    ListParams::default().limit(OBJECTS_MAX)
}

fn of_version(major: &str, minor: &str) -> Finding {
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    };
    let told = format!("Kubernetes {major}.{minor}");
    match (number(major), number(minor)) {
        (Some(1), Some(minor)) if minor >= MINOR_MIN => Finding::good("version", "", told),
        (Some(1), Some(_)) => {
            let remedy = format!("upgrade to 1.{MINOR_MIN} or newer: the custom resources use its CEL rules");
            Finding::lacking("version", "", told, remedy)
        }
        _ => Finding::unknown("version", "", told, format!("1.{MINOR_MIN} or newer is needed")),
    }
}

async fn storage(client: &Client) -> Finding {
    const CHECK: &str = "storage-class";
    let remedy = "name one in service.persistence.storageClassName, or make one the default: \
                  sessions are kept on a volume";
    let classes = match within(Api::<StorageClass>::all(client.clone()).list(&some())).await {
        Ok(classes) => classes.items,
        Err(error) => return Finding::unknown(CHECK, "", format!("can't be seen: {error}"), remedy),
    };
    let default = classes
        .iter()
        .find(|class| class.annotations().get(IS_DEFAULT_CLASS).is_some_and(|value| value == "true"));
    match (default, classes.len()) {
        (Some(class), _) => Finding::good(CHECK, class.name_any(), "it is the cluster's default"),
        (None, 0) => Finding::lacking(CHECK, "", "there is none", remedy),
        (None, n) => Finding::lacking(CHECK, "", format!("there are {n}, and none is the default"), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_clouds_write_them() {
        for (minor, outcome) in [
            ("31", Outcome::Good),
            ("33+", Outcome::Good),
            ("30-gke.100", Outcome::Lacking),
            ("9", Outcome::Lacking),
            ("x", Outcome::Unknown),
        ] {
            assert_eq!(of_version("1", minor).outcome, outcome, "{minor}");
        }
        assert_eq!(of_version("2", "0").outcome, Outcome::Unknown);
    }
}
