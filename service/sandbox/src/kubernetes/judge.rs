//! Whether a sandbox's isolation is proven: what its runner says of the forbidden ways out, held
//! against which of them are known to lead somewhere, and what the pool accepts.
//!
//! A way that is open fails. One that is closed passes only when something listens at its end: nobody
//! answering at a dead address proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use seance_operator_api::pool::{CheckName, CheckResult};

use crate::convert::{Outcome, Tried};

/// The most ways that are remembered of one sandbox.
const WAYS_MAX: usize = 256;

/// What a check came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) name: CheckName,
    pub(super) result: CheckResult,
    pub(super) message: String,
}

/// What the runner of one sandbox said of the ways out.
#[derive(Debug, Default)]
pub(super) struct Judge {
    ways: BTreeMap<(CheckName, Option<SocketAddr>), Outcome>,
    /// Ways that were first heard of when the pod was hostile already. The service dials none of them.
    late: BTreeSet<SocketAddr>,
    has_reported: bool,
    is_frozen: bool,
}

impl Judge {
    /// Takes a report, and says whether it changed anything. Once a program may have run, it can say
    /// that a way is open, which ends it, or repeat that one it spoke of before is closed; nothing else
    /// is heard.
    pub(super) fn report(&mut self, tried: Vec<Tried>) -> bool {
        let mut changed = !std::mem::replace(&mut self.has_reported, true);
        for Tried { name, address, outcome } in tried {
            let Some(name) = CheckName::ALL.into_iter().find(|check| check.as_str() == name) else {
                continue;
            };
            let way = (name, address);
            if !self.ways.contains_key(&way) {
                if self.ways.len() >= WAYS_MAX || (self.is_frozen && outcome != Outcome::Open) {
                    continue;
                }
                if self.is_frozen {
                    self.late.extend(address);
                }
            }
            changed |= self.ways.insert(way, outcome) != Some(outcome);
        }
        changed
    }

    /// Whether nothing is known of any way.
    pub(super) fn is_blank(&self) -> bool {
        self.ways.is_empty()
    }

    /// From here on the pod is hostile.
    pub(super) fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Where the ways lead that were reported.
    pub(super) fn targets(&self) -> impl Iterator<Item = SocketAddr> {
        self.ways.keys().filter_map(|(_, address)| *address).filter(|address| !self.late.contains(address))
    }

    /// Whether nothing was reported yet, or where a way leads was not tried yet: both come in a moment.
    pub(super) fn is_early(&self, listens: impl Fn(SocketAddr) -> Option<bool>) -> bool {
        !self.has_reported || self.targets().any(|target| listens(target).is_none())
    }

    /// The checks one by one. `listens` is whether something is known to listen at an address.
    pub(super) fn verdicts(
        &self,
        required: &[CheckName],
        accepted: &[CheckName],
        listens: impl Fn(SocketAddr) -> Option<bool>,
    ) -> Vec<Verdict> {
        if !self.has_reported {
            return Vec::new();
        }
        let names = CheckName::ALL.into_iter();
        let names =
            names.filter(|name| required.contains(name) || self.ways.keys().any(|(way, _)| way == name));
        names.map(|name| self.verdict(name, accepted.contains(&name), &listens)).collect()
    }

    fn verdict(
        &self,
        name: CheckName,
        is_accepted: bool,
        listens: &impl Fn(SocketAddr) -> Option<bool>,
    ) -> Verdict {
        let ways = self.ways.iter().filter(|((way, _), _)| *way == name);
        let worst = ways
            .map(|((_, address), outcome)| of_way(*address, *outcome, listens))
            .max_by_key(|(r, _)| rank(*r));
        let (result, message) = worst.unwrap_or((CheckResult::Unknown, "nobody has tried".to_owned()));
        let result =
            if is_accepted && result != CheckResult::Passed { CheckResult::Accepted } else { result };
        Verdict { name, result, message }
    }
}

/// Whether a sandbox with these checks may serve.
pub(super) fn is_proven(verdicts: &[Verdict]) -> bool {
    !verdicts.is_empty()
        && verdicts.iter().all(|v| matches!(v.result, CheckResult::Passed | CheckResult::Accepted))
}

/// Whether a way is open that must not be, as opposed to not known to be closed.
pub(super) fn is_open(verdicts: &[Verdict]) -> bool {
    verdicts.iter().any(|verdict| verdict.result == CheckResult::Failed)
}

/// What stands in the way, for people.
pub(super) fn unproven(verdicts: &[Verdict]) -> String {
    let bad = verdicts.iter().filter(|v| matches!(v.result, CheckResult::Failed | CheckResult::Unknown));
    let texts: Vec<_> =
        bad.map(|verdict| format!("{}: {}", verdict.name.as_str(), verdict.message)).collect();
    if verdicts.is_empty() { "the runner has not reported yet".to_owned() } else { texts.join("; ") }
}

fn rank(result: CheckResult) -> u8 {
    match result {
        CheckResult::Failed => 3,
        CheckResult::Unknown => 2,
        CheckResult::Accepted => 1,
        CheckResult::Passed => 0,
    }
}

fn of_way(
    address: Option<SocketAddr>,
    outcome: Outcome,
    listens: &impl Fn(SocketAddr) -> Option<bool>,
) -> (CheckResult, String) {
    let at = |text: &str| address.map_or(text.to_owned(), |address| format!("{address} {text}"));
    match (outcome, address) {
        (Outcome::Limited, None) => (CheckResult::Passed, "there is a limit".to_owned()),
        (Outcome::Open, None) => (CheckResult::Failed, "no limit was found".to_owned()),
        (Outcome::Open, Some(_)) => (CheckResult::Failed, at("can be reached")),
        (Outcome::Refused | Outcome::Silent, Some(address)) => match listens(address) {
            Some(true) => (CheckResult::Passed, at("listens and can't be reached")),
            Some(false) => (
                CheckResult::Unknown,
                at(
                    "doesn't listen, so that it proves nothing: give another, or accept the check in the pool",
                ),
            ),
            None => (CheckResult::Unknown, at("is not known to listen")),
        },
        (Outcome::Limited, Some(_)) | (Outcome::Refused | Outcome::Silent, None) => {
            (CheckResult::Unknown, at("was reported in a form that makes no sense"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const API: &str = "10.96.0.1:443";

    fn tried(name: &str, address: &str, outcome: Outcome) -> Tried {
        Tried { name: name.to_owned(), address: address.parse().ok(), outcome }
    }

    fn judged(reports: &[Tried], accepted: &[CheckName], listens: Option<bool>) -> (bool, bool) {
        let mut judge = Judge::default();
        judge.report(reports.to_vec());
        let verdicts = judge.verdicts(&[CheckName::PidsLimit], accepted, |_| listens);
        (is_proven(&verdicts), is_open(&verdicts))
    }

    #[test]
    fn isolation_is_proven_when_every_way_leads_somewhere_and_is_closed() {
        use CheckName::*;
        let limited = tried("pids-limit", "", Outcome::Limited);
        let api = |outcome| tried("api-server", API, outcome);
        type Line<'a> = (&'a [Tried], &'a [CheckName], Option<bool>, (bool, bool));
        let table: &[Line<'_>] = &[
            (&[limited.clone(), api(Outcome::Silent)], &[], Some(true), (true, false)),
            (&[limited.clone(), api(Outcome::Refused)], &[], Some(true), (true, false)),
            (&[limited.clone(), api(Outcome::Silent)], &[], Some(false), (false, false)),
            (&[limited.clone(), api(Outcome::Silent)], &[], None, (false, false)),
            (&[limited.clone(), api(Outcome::Open)], &[], Some(true), (false, true)),
            (&[limited.clone(), api(Outcome::Open)], &[ApiServer], Some(true), (true, false)),
            (&[limited.clone(), api(Outcome::Open)], &[Resolver], Some(true), (false, true)),
            // What is required and was not tried isn't proven.
            (&[api(Outcome::Silent)], &[], Some(true), (false, false)),
            (&[api(Outcome::Silent)], &[PidsLimit], Some(true), (true, false)),
            (&[tried("pids-limit", "", Outcome::Open)], &[], Some(true), (false, true)),
            (&[], &[], Some(true), (false, false)),
        ];
        for (reports, accepted, listens, expected) in table {
            assert_eq!(
                judged(reports, accepted, *listens),
                *expected,
                "{reports:?} {accepted:?} {listens:?}"
            );
        }
    }

    /// Two addresses of one check: the worse one counts.
    #[test]
    fn one_open_way_of_several_fails_the_check() {
        let limited = tried("pids-limit", "", Outcome::Limited);
        let open = tried("metadata", "169.254.169.254:80", Outcome::Open);
        let closed = tried("metadata", "[fd00:ec2::254]:80", Outcome::Silent);
        assert_eq!(judged(&[limited, open, closed], &[], Some(true)), (false, true));
    }

    /// A hostile pod can't make the service dial addresses, nor talk a check away.
    #[test]
    fn nothing_new_is_heard_after_a_program_may_have_run() {
        let mut judge = Judge::default();
        assert!(judge.report(vec![tried("api-server", API, Outcome::Silent)]));
        assert!(!judge.report(vec![tried("api-server", API, Outcome::Silent)]), "it is known");
        judge.freeze();
        let other = "10.0.0.1:22";
        judge.report(vec![tried("resolver", other, Outcome::Silent), tried("x", other, Outcome::Open)]);
        assert_eq!(judge.ways.len(), 1);
        judge.report(vec![tried("resolver", other, Outcome::Open)]);
        assert!(is_open(&judge.verdicts(&[], &[], |_| None)), "it may say so of itself");
        assert_eq!(judge.targets().collect::<Vec<_>>(), [API.parse().unwrap()]);
        judge.report(vec![tried("api-server", API, Outcome::Open)]);
        assert!(is_open(&judge.verdicts(&[], &[], |_| Some(true))));
    }
}
