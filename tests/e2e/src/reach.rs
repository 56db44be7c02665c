//! How the tests reach the service: at its Service's address, where the tests run inside of the
//! cluster's network, or through the API server.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Which of the ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reach {
    /// The address of the Service.
    Address,
    /// `kubectl port-forward`, from anywhere.
    Forward,
}

const FORWARD_WITHIN: Duration = Duration::from_secs(30);

/// A port of this machine that leads to a Service. Dropping it ends that.
pub struct Forward {
    /// The port.
    pub port: u16,
    _kubectl: Child,
}

impl Forward {
    /// Leads a free port to the first port of a Service.
    ///
    /// # Errors
    /// When kubectl can't be run, or doesn't say a port in time.
    pub async fn to(namespace: &str, service: &str, port: i32) -> anyhow::Result<Self> {
        let mut kubectl = Command::new("kubectl")
            .args([
                "--namespace",
                namespace,
                "port-forward",
                &format!("service/{service}"),
                &format!(":{port}"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("running kubectl, which has to be on the PATH")?;
        let said = BufReader::new(kubectl.stdout.take().context("kubectl has an output")?);
        let mut lines = said.lines();
        let first = tokio::time::timeout(FORWARD_WITHIN, lines.next_line()).await;
        let line =
            first.context("kubectl port-forward said nothing")??.context("kubectl port-forward ended")?;
        let port = port_of(&line).with_context(|| format!("kubectl port-forward said {line:?}"))?;
        // What it says later is read, so that it can't block.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { port, _kubectl: kubectl })
    }
}

/// The port in `Forwarding from 127.0.0.1:40001 -> 7443`.
fn port_of(line: &str) -> Option<u16> {
    let (address, _) = line.strip_prefix("Forwarding from ")?.split_once(" -> ")?;
    address.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::port_of;

    #[test]
    fn the_port_is_read_from_what_kubectl_says() {
        assert_eq!(port_of("Forwarding from 127.0.0.1:40001 -> 7443"), Some(40001));
        assert_eq!(port_of("Forwarding from [::1]:40001 -> 7443"), Some(40001));
        assert_eq!(port_of("error: no pod"), None);
    }
}
