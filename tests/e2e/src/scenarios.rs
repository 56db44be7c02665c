//! The tests. Each is a function of its place; what holds for every test (nothing leaked, everything
//! removed) is said once.

use futures::FutureExt as _;

use crate::run::{Need, Test, When};

mod bench;
mod breadth;
mod chart;
mod clients;
mod cuts;
mod doctor;
mod edges;
mod ends;
mod faults;
mod isolation;
mod operator;
mod suites;
mod telemetry;
mod tenants;
mod upgrades;

/// Tests of functions and what they show.
macro_rules! tests {
    ($when:expr, $needs:expr; $($name:literal, $function:path, $shows:literal;)*) => {
        vec![$(Test {
            name: $name, shows: $shows, run: |place| $function(place).boxed(), when: $when, needs: &$needs,
        },)*]
    };
}

/// All tests, the broadest first.
pub fn all() -> Vec<Test> {
    [beside(), clients(), on_the_node(), alone(), alone_on_the_node(), with_images(), lists()]
        .into_iter()
        .flatten()
        .collect()
}

fn beside() -> Vec<Test> {
    tests! {
        When::Beside, [];
        "breadth", breadth::a_session_from_install_to_uninstall, "install, one pool, a program with a tool call, close, helm test, uninstall";
        "tenants", tenants::what_is_another_tenants_is_not_found, "other tenants' things are NOT_FOUND; callers without credentials are refused";
        "kubernetes-callers", tenants::a_token_of_the_cluster_is_a_caller, "a service account's token of our audience is a caller of its tenant, another audience's is none";
        "killed", ends::a_killed_pod_is_a_typed_reason, "sandbox 17, 23: a pod killed under a program is told by its reason, and the session goes on";
        "out-of-memory", ends::memory_beyond_the_pod_is_out_of_memory, "sandbox 21: the container's own out-of-memory is told by its reason";
        "restart", ends::programs_outlive_the_service, "sandbox 19: the service is killed under running programs, and none is lost";
        "refill", operator::a_pool_fills_up_again_and_never_overshoots, "sandbox 1, 7: a pool fills up again; every session has a pod of its own";
        "bad-image", operator::an_image_that_is_not_there_is_told, "sandbox 5: an image that can't be pulled is a condition and a typed refusal";
        "quota", operator::a_quota_is_told_and_overcome, "sandbox 22: a used-up quota is told by name, and is over when it is raised";
        "unschedulable", operator::an_impossible_selector_is_told, "sandbox 3: pods that no node takes never exceed the pool";
        "template", operator::a_new_template_replaces_warm_pods_alone, "sandbox 10: a new template replaces warm pods; a session keeps its own";
        "idle-minute", operator::an_idle_minute_writes_nothing, "an idle pool writes nothing";
        "victims", operator::a_pod_with_our_labels_is_not_ours, "sandbox 14, 15: labels and names make no pod ours";
        "chart", chart::values_that_can_not_be_are_refused, "lint is clean; values that can't be are refused in words";
        "rights", chart::rights_are_the_least, "service, operator and runner have the least rights";
        "isolation", isolation::only_the_link_can_be_reached, "sandbox 39, 41: only the link can be reached; a wider policy stops the pool";
        "restricted", isolation::pods_are_restricted, "pods pass Pod Security restricted, have no API token and no resolver";
        "upgrade", upgrades::sessions_outlive_an_upgrade, "an upgrade with sessions open; warm pods are replaced";
        "authorities", upgrades::authorities_overlap, "a new CA of the link takes three upgrades, and no session notices";
        "bench", bench::all_figures_are_measured_and_nothing_stays, "all figures of `seance bench --kubernetes`; nothing of it stays, interrupted or not";
        "doctor", doctor::what_a_cluster_lacks_is_told, "`seance doctor --kubernetes` tells what is well and what lacks, with its remedy";
        "uninstall", upgrades::uninstalling_leaves_nothing, "sandbox 11: uninstalled with sessions open, everything is gone within a minute";
        "drained", faults::a_drained_node_is_told, "sandbox 2: sandboxes evicted by a drain are told within 5 s of their end, and the sessions go on";
        "deadline", faults::a_pod_past_its_deadline_is_told, "a pod past its deadline is told by its reason";
        "impossible", edges::an_impossible_selector_is_told_early, "sandbox 3, 7: an open for pods that no node takes is told at once why, not at its deadline";
        "burst", edges::two_hundred_opens_all_end, "sandbox 7: 200 opens at once each end opened or refused by a reason, fairly between tenants";
        "refill-killed", edges::a_refill_survives_its_operator, "sandbox 1, 9: the operator is killed in the middle of a refill, and the pool comes out as large as it should be";
    }
}

fn clients() -> Vec<Test> {
    tests! {
        When::Beside, [Need::Clients];
        "clients", clients::other_clients_find_what_they_expect, "the checks of clients in other languages, against an installed chart";
    }
}

fn on_the_node() -> Vec<Test> {
    tests! {
        When::Beside, [Need::Node];
        "evicted", faults::a_disk_that_is_too_full_is_told, "a pod over its disk is told by its reason";
        "runner-killed", faults::a_killed_runner_is_told, "sandbox 17, 31: a runner killed in its pod is told within 5 s";
        "link-cut", cuts::a_cut_link_loses_and_doubles_nothing, "sandbox 26, 27: a link is cut and comes back, with no byte and no call lost or doubled";
    }
}

fn alone() -> Vec<Test> {
    tests! {
        When::Alone, [];
        "cordoned", faults::a_cordoned_node_takes_no_session, "sandbox 2: warm sandboxes of a cordoned node are not picked";
        "preempted", faults::a_preempted_sandbox_is_told, "a sandbox that gave way to a pod that matters more is told by its reason";
        "fifty", edges::fifty_programs_outlive_the_service, "sandbox 19: a pool of 60; the service is killed under 50 programs, and none is lost or runs twice";
    }
}

fn alone_on_the_node() -> Vec<Test> {
    tests! {
        When::Alone, [Need::Node];
        "node-lost", faults::a_lost_node_is_told, "sandboxes of a node that is no longer heard go on, and are told of when the cluster gives them up";
        "outage", edges::sessions_outlive_an_outage_of_the_api, "the API server is away: programs and warm opens go on";
        "unenforced", cuts::without_enforcement_nothing_serves, "sandbox 41: nobody enforces policies, and nothing serves";
    }
}

fn with_images() -> Vec<Test> {
    let mut tests = tests! {
        When::Beside, [Need::Image("hostile")];
        "hostile", suites::hostile_programs_are_contained, "O4-O18, R5, sandbox 38: the attempts of the hostile-program suite, from inside a pod";
    };
    tests.extend(tests! {
        When::Beside, [Need::Image("collector")];
        "traces", telemetry::a_call_is_traced_to_its_caller, "the spans of one open, program and call, read back from an OpenTelemetry collector";
    });
    tests
}

fn lists() -> Vec<Test> {
    let mut tests = tests! {
        When::Alone, [Need::Conformance, Need::Image("runner-python"), Need::Image("runner-ruby")];
        "acceptance", suites::the_lists_hold_where_pods_differ, "the lines of the acceptance lists whose ways are others with pods";
    };
    tests.extend(tests! {
        When::Named, [Need::Conformance, Need::Image("runner-python"), Need::Image("runner-ruby")];
        "acceptance-whole", suites::the_lists_hold, "all lines of the acceptance lists, with pods as the backend";
    });
    tests
}
