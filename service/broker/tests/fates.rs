//! Whatever happens in whatever order: every dispatched call ends in exactly one way, and what is
//! called not started was never with a provider.

mod support;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use seance_broker::providers::*;
use seance_core::ids::CallId;
use support::*;

const TOOLS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Step {
    Dispatch {
        tool: usize,
        repeatable: bool,
    },
    /// Attaches a provider in a slot: the tools (none for all others), and what it says of the
    /// calls that this slot took, in turn, when it attaches again.
    Attach {
        slot: usize,
        tools: Vec<usize>,
        again: bool,
        says: Vec<u8>,
    },
    Detach {
        slot: usize,
    },
    Take {
        slot: usize,
    },
    Result {
        slot: usize,
        nth: usize,
    },
    Answer {
        nth: usize,
    },
    Cancel {
        nth: usize,
    },
    Recorded {
        nth: usize,
    },
    Receive,
    Advance {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, any::<bool>()).prop_map(|(tool, repeatable)| Step::Dispatch { tool, repeatable }),
        3 => (0..2_usize, prop::collection::vec(0..3_usize, 0..3), any::<bool>(), prop::collection::vec(0..4_u8, 4))
            .prop_map(|(slot, tools, again, says)| Step::Attach { slot, tools, again, says }),
        2 => (0..2_usize).prop_map(|slot| Step::Detach { slot }),
        6 => (0..2_usize).prop_map(|slot| Step::Take { slot }),
        3 => (0..2_usize, 0..20_usize).prop_map(|(slot, nth)| Step::Result { slot, nth }),
        1 => (0..20_usize).prop_map(|nth| Step::Answer { nth }),
        1 => (0..20_usize).prop_map(|nth| Step::Cancel { nth }),
        1 => (0..20_usize).prop_map(|nth| Step::Recorded { nth }),
        2 => Just(Step::Receive),
        2 => (1..40_u64).prop_map(|seconds| Step::Advance { seconds }),
    ]
}

#[derive(Default)]
struct World {
    n_calls: u64,
    repeatable: HashSet<CallId>,
    slots: [Option<Attachment>; 2],
    /// The calls that each slot's provider took.
    taken: [Vec<CallId>; 2],
    /// Calls that may be with a provider: taken, and not disowned since.
    with_provider: HashSet<CallId>,
    ends: HashMap<CallId, Vec<String>>,
}

impl World {
    fn end(&mut self, call: CallId, how: &str, not_started: bool) {
        assert!(!(not_started && self.with_provider.contains(&call)), "{call} was with a provider: {how}");
        self.ends.entry(call).or_default().push(how.to_owned());
    }

    fn answered(&mut self, answered: Answered) {
        let not_started = matches!(answered.outcome, Outcome::NoProvider | Outcome::NotStarted);
        self.end(answered.call, &format!("{:?}", answered.outcome), not_started);
    }

    async fn apply(&mut self, session: &mut Session, step: Step) {
        match step {
            Step::Dispatch { tool, repeatable: may_repeat } => {
                self.n_calls += 1;
                let dispatch = Dispatch { repeatable: may_repeat, ..call(self.n_calls, TOOLS[tool]) };
                if may_repeat {
                    self.repeatable.insert(dispatch.id);
                }
                session.calls.dispatch(dispatch).unwrap();
            }
            Step::Attach { slot, tools, again, says } => self.attach(session, slot, &tools, again, &says),
            Step::Detach { slot } => self.slots[slot] = None,
            Step::Take { slot } => self.take(slot).await,
            Step::Result { slot, nth } => {
                let Some(provider) = &self.slots[slot] else { return };
                provider.results().result(call_id(nth as u64 + 1), text("result"));
            }
            Step::Answer { nth } => {
                let _ = session.providers.answer(session_id(1), call_id(nth as u64 + 1), text("answer"));
            }
            Step::Cancel { nth } => {
                let id = call_id(nth as u64 + 1);
                let fate = session.calls.cancel(id, CancelReason::Aborted);
                if fate != Cancelled::Over {
                    self.end(id, &format!("{fate:?}"), fate == Cancelled::NotStarted);
                }
            }
            Step::Recorded { nth } => session.calls.recorded(call_id(nth as u64 + 1)),
            Step::Receive => {
                if let Some(answered) = session.answers.try_recv() {
                    self.answered(answered);
                }
            }
            Step::Advance { seconds } => tokio::time::advance(Duration::from_secs(seconds)).await,
        }
    }

    fn attach(&mut self, session: &Session, slot: usize, tools: &[usize], again: bool, says: &[u8]) {
        if self.slots[slot].is_some() {
            return;
        }
        let names: Vec<&str> = tools.iter().map(|tool| TOOLS[*tool]).collect();
        let mut attach = Attach { again, ..serving(&names) };
        for (call, says) in self.taken[slot].iter().zip(says.iter().cycle()).filter(|_| again) {
            match says {
                0 => attach.held.push(*call),
                1 => attach.finished.push((*call, text("finished"))),
                2 => attach.unknown.push(*call),
                _ => {}
            }
        }
        let finished = attach.finished.iter().map(|(call, _)| *call);
        let told: HashSet<CallId> =
            attach.held.iter().chain(&attach.unknown).copied().chain(finished).collect();
        if let Ok(attachment) = session.providers.attach(session_id(1), attach) {
            self.slots[slot] = Some(attachment);
            if again {
                // It disowns the calls that it doesn't tell of, and is believed.
                self.with_provider.retain(|call| told.contains(call));
            }
        }
    }

    async fn take(&mut self, slot: usize) {
        let Some(provider) = &mut self.slots[slot] else { return };
        let message = tokio::select! {
            biased;
            message = provider.next() => message,
            () = std::future::ready(()) => return,
        };
        if let Ok(ToProvider::Call(got)) = message {
            let is_new = self.with_provider.insert(got.id);
            assert!(!self.ends.contains_key(&got.id), "{} had ended", got.id);
            assert!(is_new || got.repeated, "{} was taken twice", got.id);
            assert!(!got.repeated || self.repeatable.contains(&got.id), "{} may not be repeated", got.id);
            self.taken[slot].push(got.id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_call_ends_in_exactly_one_way(steps in prop::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut session = Session::open(GRACE);
            let mut world = World::default();
            for step in steps {
                world.apply(&mut session, step).await;
            }
            world.slots = [None, None];
            while world.ends.len() < usize::try_from(world.n_calls).unwrap() {
                let answered = tokio::time::timeout(2 * TIMEOUT, session.answers.recv()).await;
                world.answered(answered.expect("every call ends in its time").unwrap());
            }
            let Session { calls, mut answers, .. } = session;
            assert!(answers.try_recv().is_none() && calls.close().is_empty());
            for (call, ends) in &world.ends {
                assert_eq!(ends.len(), 1, "{call}: {ends:?}");
            }
        });
    }
}
