use proptest::prelude::*;

use super::*;

const NOW: i64 = 1_000_000;

fn wanted(min: usize, max: usize, percent: usize, max_starting: usize) -> Wanted {
    Wanted { min, max, percent_of_assigned: percent, max_starting, max_age: 3600, warm_within: 120 }
}

fn member(number: usize, state: State) -> Member {
    let created = NOW - 10 - i64::try_from(number).expect("small");
    Member { uid: format!("u{number}"), created, state, is_stale: false, is_leaving: false }
}

fn members(states: &[(usize, State)]) -> Vec<Member> {
    let all = states.iter().flat_map(|(n, state)| std::iter::repeat_n(*state, *n));
    all.enumerate().map(|(number, state)| member(number, state)).collect()
}

const STARTING: State = State::Starting { running_since: None };

#[test]
fn the_goal_follows_demand_between_its_bounds() {
    let wanted = wanted(2, 10, 25, 4);
    for (assigned, goal) in [(0, 2), (8, 2), (9, 3), (12, 3), (13, 4), (40, 10), (1000, 10)] {
        assert_eq!(wanted.goal(assigned), goal, "{assigned}");
    }
}

/// What is there, and what is made and asked to go (by how many).
#[test]
fn a_pool_fills_and_shrinks_by_what_there_is() {
    type Case<'a> = (&'a str, &'a [(usize, State)], usize, usize, usize);
    let cases: &[Case<'_>] = &[
        ("an empty pool starts as many as it may at once", &[], 0, 4, 0),
        ("what was made and not seen counts", &[], 3, 1, 0),
        ("what starts counts", &[(3, STARTING)], 0, 1, 0),
        ("a full pool rests", &[(5, State::Warm)], 0, 0, 0),
        ("what was taken is made anew", &[(4, State::Warm), (1, State::Assigned)], 0, 1, 0),
        ("too many warm ones go", &[(8, State::Warm)], 0, 0, 3),
        ("too many that start go before warm ones", &[(5, State::Warm), (2, STARTING)], 0, 0, 2),
        ("what retires leaves room for some beyond the goal", &[(6, State::Retiring)], 0, 3, 0),
        ("what retires and doesn't end stops the refill", &[(9, State::Retiring)], 0, 0, 0),
        ("cold ones are the service's", &[(5, State::Warm), (7, State::Cold { until: None })], 0, 0, 0),
    ];
    for (what, states, unseen, create, retire) in cases {
        let decision = decide(&wanted(5, 5, 0, 4), &members(states), *unseen, NOW);
        assert_eq!((decision.create, decision.retire.len()), (*create, *retire), "{what}: {decision:?}");
    }
}

/// Sandbox 3: pods that nothing schedules count, so that a pool doesn't grow by them.
#[test]
fn a_pool_that_nothing_schedules_stays_small() {
    let decision = decide(&wanted(20, 20, 0, 4), &members(&[(4, STARTING)]), 0, NOW);
    assert_eq!((decision.create, decision.retire.len()), (0, 0));
}

#[test]
fn old_ones_are_replaced_first_and_go_then() {
    let wanted = wanted(3, 3, 0, 2);
    let mut there = members(&[(3, State::Warm)]);
    there.iter_mut().for_each(|member| member.is_stale = true);
    let first = decide(&wanted, &there, 0, NOW);
    assert_eq!((first.create, first.retire.len()), (2, 0), "two new ones before any goes");

    there.extend((10..12).map(|number| member(number, State::Warm)));
    let second = decide(&wanted, &there, 0, NOW);
    assert_eq!((second.create, second.retire), (0, vec!["u2".to_owned(), "u1".to_owned()]), "the oldest go");
}

/// Sandbox 2: whoever gets a sandbox on a node that is about to be drained loses it.
#[test]
fn warm_ones_on_a_closed_node_go_before_there_are_others() {
    let mut there = members(&[(3, State::Warm)]);
    there[..2].iter_mut().for_each(|member| member.is_leaving = true);
    let decision = decide(&wanted(3, 3, 0, 2), &there, 0, NOW);
    assert_eq!(decision.retire, ["u0", "u1"]);
    assert_eq!((decision.create, decision.warm, decision.stale), (2, 3, 2));
}

/// Sandbox 2: nor does one that was put there before it was closed come to serve.
#[test]
fn those_that_start_on_a_closed_node_go_too() {
    let mut there = members(&[(1, State::Warm), (1, STARTING)]);
    there[1].is_leaving = true;
    let decision = decide(&wanted(2, 2, 0, 2), &there, 0, NOW);
    assert_eq!((decision.retire.as_slice(), decision.create), (&["u1".to_owned()][..], 1));
}

#[test]
fn age_makes_old_and_is_looked_at_in_time() {
    let wanted = wanted(1, 1, 0, 1);
    let mut young = member(0, State::Warm);
    let decision = decide(&wanted, std::slice::from_ref(&young), 0, NOW);
    assert_eq!((decision.create, decision.look_again), (0, Some(young.created + 3600)));
    young.created = NOW - 3600;
    let decision = decide(&wanted, &[young], 0, NOW);
    assert_eq!((decision.create, decision.retire.len(), decision.look_again), (1, 0, None));
}

/// One too many goes when it counts, and not at the next look by chance.
#[test]
fn a_cold_one_that_no_session_took_is_looked_at_when_it_counts() {
    let cold = member(0, State::Cold { until: Some(NOW + 7) });
    assert_eq!(decide(&wanted(0, 0, 0, 1), &[cold], 0, NOW).look_again, Some(NOW + 7));
}

#[test]
fn what_starts_from_an_old_template_gives_way_at_once() {
    let mut there = members(&[(4, STARTING)]);
    there.iter_mut().for_each(|member| member.is_stale = true);
    let decision = decide(&wanted(4, 4, 0, 4), &there, 0, NOW);
    assert_eq!(decision.retire.len(), 4);
    assert_eq!(decision.create, 4, "a corrected image isn't stopped by the broken one");
}

#[test]
fn what_runs_and_never_gets_warm_is_given_up_a_few_at_a_time() {
    let stuck = State::Starting { running_since: Some(NOW - 120) };
    let patient = State::Starting { running_since: Some(NOW - 119) };
    let decision = decide(&wanted(5, 5, 0, 2), &members(&[(4, stuck), (1, patient)]), 0, NOW);
    assert_eq!((decision.retire.len(), decision.look_again), (2, Some(NOW + 1)));
    let decision = decide(&wanted(5, 5, 0, 2), &members(&[(4, stuck), (2, State::Retiring)]), 0, NOW);
    assert_eq!(decision.retire.len(), 0, "as many as may be beyond the goal are on their way out");
}

#[test]
fn pods_that_end_early_are_made_ever_more_slowly() {
    let failed = |at: i64| State::Finished { failed: Some(at) };
    for (n, pause) in [(1, 2), (2, 4), (5, 32), (9, 300), (100, 300)] {
        let there = members(&[(n, failed(NOW))]);
        let wanted = wanted(5, 5, 0, 4);
        let decision = decide(&wanted, &there, 0, NOW + pause - 1);
        assert_eq!((decision.create, decision.look_again), (0, Some(NOW + pause)), "after {n}");
        assert_eq!(decide(&wanted, &there, 0, NOW + pause).create, 1, "and then one");
    }
    let ended_well = members(&[(3, State::Finished { failed: None })]);
    assert_eq!(decide(&wanted(5, 5, 0, 4), &ended_well, 0, NOW).create, 4);
}

fn any_state() -> impl Strategy<Value = State> {
    let time = -400i64..=0;
    prop_oneof![
        proptest::option::of(time.clone())
            .prop_map(|since| State::Starting { running_since: since.map(|since| NOW + since) }),
        Just(State::Cold { until: None }),
        Just(State::Warm),
        Just(State::Assigned),
        Just(State::Retiring),
        proptest::option::of(time).prop_map(|at| State::Finished { failed: at.map(|at| NOW + at) }),
    ]
}

fn any_members() -> impl Strategy<Value = Vec<Member>> {
    let one = (any_state(), any::<bool>(), any::<bool>(), -8000i64..0);
    proptest::collection::vec(one, 0..40).prop_map(|all| {
        let member = |(number, (state, is_stale, leaves, age))| Member {
            uid: format!("u{number:02}"),
            created: NOW + age,
            state,
            is_stale,
            is_leaving: leaves && (state == State::Warm || is_starting(&state)),
        };
        all.into_iter().enumerate().map(member).collect()
    })
}

fn any_wanted() -> impl Strategy<Value = Wanted> {
    (0usize..10, 0usize..10, 0usize..300, 1usize..6)
        .prop_map(|(min, more, percent, starting)| wanted(min, min + more, percent, starting))
}

fn count(members: &[Member], matches: impl Fn(&State) -> bool) -> usize {
    members.iter().filter(|member| matches(&member.state)).count()
}

fn is_starting(state: &State) -> bool {
    matches!(state, State::Starting { .. })
}

proptest! {
    /// The guarantees at the top of the module.
    #[test]
    fn decisions_keep_their_bounds(wanted in any_wanted(), members in any_members(), unseen in 0usize..6) {
        let decision = decide(&wanted, &members, unseen, NOW);
        let warm = count(&members, |state| *state == State::Warm);
        let alive = warm + unseen + count(&members, |state| is_starting(state) || *state == State::Retiring);
        if decision.create > 0 {
            prop_assert!(alive + decision.create <= decision.goal + wanted.max_starting);
            prop_assert!(decision.starting + decision.create <= wanted.max_starting);
        }
        let mut gone_warm = 0;
        for uid in &decision.retire {
            let member = members.iter().find(|member| member.uid == *uid).expect("a member");
            prop_assert!(is_starting(&member.state) || member.state == State::Warm, "{member:?}");
            gone_warm += usize::from(member.state == State::Warm);
        }
        let asked = |member: &&Member| decision.retire.contains(&member.uid);
        prop_assert!(members.iter().filter(|it| it.is_leaving).all(|it| asked(&it)), "what leaves is asked at once");
        let leaving = members.iter().filter(|it| it.is_leaving && it.state == State::Warm).count();
        prop_assert!(gone_warm - leaving <= (warm - leaving).saturating_sub(decision.goal));
        let mut once = decision.retire.clone();
        once.sort();
        once.dedup();
        prop_assert_eq!(once.len(), decision.retire.len(), "nobody is asked twice");
    }

    /// Whatever there was: when pods start and end as they should, a pool comes to rest at its goal,
    /// with nothing old in it, and has never had more than it may on the way.
    #[test]
    fn a_pool_comes_to_rest_at_its_goal(wanted in any_wanted(), mut members in any_members()) {
        let mut now = NOW;
        let (mut next, mut rested) = (100, 0);
        for _ in 0..400 {
            let decision = decide(&wanted, &members, 0, now);
            let is_quiet = decision.create == 0 && decision.retire.is_empty();
            let is_still = !members.iter().any(|it| is_starting(&it.state) || it.state == State::Retiring);
            rested = if is_quiet && is_still { rested + 1 } else { 0 };
            if rested > 1 && decision.failed == 0 {
                break;
            }
            now += 1;
            step(&mut members, &decision, &mut next, now);
        }
        let decision = decide(&wanted, &members, 0, now);
        prop_assert_eq!((decision.warm, decision.stale), (decision.goal, 0), "{:?}", decision);
    }
}

/// A second of a world in which pods start and end as they should and failures are forgotten.
fn step(members: &mut Vec<Member>, decision: &Decision, next: &mut usize, now: i64) {
    members.retain(|member| !matches!(member.state, State::Retiring | State::Finished { .. }));
    for member in members.iter_mut() {
        if decision.retire.contains(&member.uid) {
            member.state = State::Retiring;
        } else if is_starting(&member.state) {
            member.state = State::Warm;
        }
    }
    for _ in 0..decision.create {
        *next += 1;
        let uid = format!("u{next}");
        members.push(Member { uid, created: now, state: STARTING, is_stale: false, is_leaving: false });
    }
}
