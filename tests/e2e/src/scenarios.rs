//! The tests. Each is a function of its place; what holds for every test (nothing leaked, everything
//! removed) is said once.

use futures::FutureExt as _;

use crate::run::Test;

mod bench;
mod breadth;
mod chart;
mod clients;
mod ends;
mod isolation;
mod operator;
mod tenants;
mod upgrades;

/// The test that needs commands to run.
pub const CLIENTS: &str = "clients";

/// A test of a function and what it shows.
macro_rules! tests {
    ($($name:expr, $function:path, $shows:literal;)*) => {
        vec![$(Test { name: $name, shows: $shows, run: |place| $function(place).boxed() },)*]
    };
}

/// All tests, the broadest first.
pub fn all() -> Vec<Test> {
    tests! {
        "breadth", breadth::a_session_from_install_to_uninstall, "install, one pool, a program with a tool call, close, helm test, uninstall";
        "tenants", tenants::what_is_another_tenants_is_not_found, "other tenants' things are NOT_FOUND; callers without credentials are refused";
        "kubernetes-callers", tenants::a_token_of_the_cluster_is_a_caller, "a service account's token of our audience is a caller of its tenant, another audience's is none";
        CLIENTS, clients::other_clients_find_what_they_expect, "the checks of clients in other languages, against an installed chart";
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
        "uninstall", upgrades::uninstalling_leaves_nothing, "sandbox 11: uninstalled with sessions open, everything is gone within a minute";
    }
}
