//! What went wrong with a pool, as events of Kubernetes: `kubectl describe` shows them below it.
//!
//! Each is told when it begins and not again while it lasts, so that a pool at rest writes nothing.
//! Its recovery is in the conditions.

use kube::Resource;
use kube::runtime::events::{Event, EventType};
use seance_operator_api::SandboxPool;
use seance_operator_api::conditions::{Condition, condition};
use seance_operator_api::pool::{SandboxPoolStatus, condition_type, reason};

use crate::context::Context;

/// What an event's text may have, in bytes; the API server refuses more.
const NOTE_BYTES_MAX: usize = 1_000;

/// Tells what begins with this status. Who can't be told loses nothing: the conditions say the same.
pub async fn publish(pool: &SandboxPool, context: &Context, status: &SandboxPoolStatus) {
    let standing = pool.conditions();
    for event in beginning(standing, &status.conditions) {
        if let Err(error) = context.cluster.publish(&event, &pool.object_ref(&())).await {
            tracing::debug!(%error, reason = event.reason, "an event could not be published");
        }
    }
}

/// The troubles of `new` that are not in `old`.
fn beginning(old: &[Condition], new: &[Condition]) -> Vec<Event> {
    let is_new = |is: &&Condition| {
        condition(old, &is.type_).is_none_or(|was| (&was.status, &was.reason) != (&is.status, &is.reason))
    };
    new.iter().filter(|is| is_trouble(is)).filter(is_new).map(warning).collect()
}

/// A pool that fills up isn't in trouble, and isolation that nothing is known of yet isn't either.
fn is_trouble(is: &Condition) -> bool {
    let type_ = is.type_.as_str();
    is.status == "False" && is.reason != reason::FILLING && type_ == condition_type::READY
        || is.status == "False" && type_ == condition_type::ISOLATION_PROVEN
}

fn warning(is: &Condition) -> Event {
    let note = &is.message[..is.message.floor_char_boundary(NOTE_BYTES_MAX)];
    Event {
        type_: EventType::Warning,
        reason: is.reason.clone(),
        note: (!note.is_empty()).then(|| note.to_owned()),
        action: "Reconcile".to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use seance_operator_api::conditions::{Time, Verdict};

    use super::*;

    fn of(type_: &'static str, is: bool, reason: &'static str, message: &str) -> Condition {
        let verdict = Verdict { type_, is: Some(is), reason, message: message.to_owned() };
        verdict.over(&[], Some(1), Time(Timestamp::UNIX_EPOCH))
    }

    /// Sandbox 5: a trouble is told once, when it begins.
    #[test]
    fn a_trouble_is_told_when_it_begins_and_not_again() {
        let filling = of(condition_type::READY, false, reason::FILLING, "");
        let failing = of(condition_type::READY, false, reason::IMAGE_PULL_FAILED, "no such image");
        let events = beginning(std::slice::from_ref(&filling), std::slice::from_ref(&failing));
        let [event] = &events[..] else { panic!("{} events", events.len()) };
        assert_eq!(
            (event.reason.as_str(), event.note.as_deref()),
            ("ImagePullFailed", Some("no such image"))
        );
        assert!(beginning(std::slice::from_ref(&failing), std::slice::from_ref(&failing)).is_empty());
        assert!(beginning(std::slice::from_ref(&failing), &[filling]).is_empty());
        let open =
            of(condition_type::ISOLATION_PROVEN, false, reason::ISOLATION_NOT_PROVEN, &"é".repeat(2_000));
        let events = beginning(&[], &[open]);
        assert_eq!(events[0].note.as_ref().map(String::len), Some(NOTE_BYTES_MAX));
    }
}
