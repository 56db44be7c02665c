//! How long watches of the custom resources pause when the API server is away.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;

/// The longest pause before an API server that is away is tried again.
pub const AWAY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The pauses of a watch that breaks. Sandboxes and callers wait for what it brings when the API server is
/// back, and there are few watches: half a minute, as it is usual, would be long for nothing.
#[derive(Default)]
pub struct WatchPauses(DefaultBackoff);

impl Iterator for WatchPauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(AWAY_PAUSE_MAX))
    }
}

impl Backoff for WatchPauses {
    fn reset(&mut self) {
        self.0.reset();
    }
}
