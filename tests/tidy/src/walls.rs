//! The arrows between the workspace's crates: these are trust walls (the service holds
//! credentials, the runner is hostile, the operator may manage pods), and a crate that leans on
//! one more than it may has moved a wall.

use crate::{Finding, metadata::Metadata};

/// What a crate may use of the workspace.
struct Wall {
    name: &'static str,
    /// In the crate itself.
    uses: &'static [&'static str],
    /// In its tests beside that.
    tests_use: &'static [&'static str],
}

const SERVICE: &[&str] = &[
    "seance-proto",
    "seance-core",
    "seance-engines",
    "seance-broker",
    "seance-store",
    "seance-sandbox",
    "seance-sessions",
];

/// Every crate, those to come included: their walls stand before they do.
const WALLS: &[Wall] = &[
    Wall { name: "seance-proto", uses: &[], tests_use: &[] },
    Wall { name: "seance-core", uses: &[], tests_use: &[] },
    Wall { name: "seance-engines", uses: &["seance-core"], tests_use: &[] },
    Wall { name: "seance-broker", uses: &["seance-core"], tests_use: &[] },
    Wall { name: "seance-store", uses: &["seance-core"], tests_use: &[] },
    Wall {
        name: "seance-sandbox",
        uses: &["seance-core", "seance-proto", "seance-operator-api"],
        tests_use: &["seance-hostile", "seance-runner"],
    },
    Wall {
        name: "seance-sessions",
        uses: &["seance-core", "seance-engines", "seance-broker"],
        tests_use: &["seance-store"],
    },
    Wall { name: "seance-server", uses: SERVICE, tests_use: &["seance-runner", "seance-operator-api"] },
    // It picks the backend and hands it to the server, and its bench measures rooms on their own and
    // pools of a cluster.
    Wall {
        name: "seance-cli",
        uses: &[
            "seance-server",
            "seance-sandbox",
            "seance-runner",
            "seance-proto",
            "seance-core",
            "seance-broker",
            "seance-store",
            "seance-operator-api",
        ],
        tests_use: &[],
    },
    Wall { name: "seance-runner", uses: &["seance-proto"], tests_use: &[] },
    Wall { name: "seance-operator-api", uses: &[], tests_use: &[] },
    Wall { name: "seance-operator", uses: &["seance-operator-api"], tests_use: &[] },
    Wall { name: "seance-conformance", uses: &["seance-proto"], tests_use: &[] },
    Wall { name: "seance-e2e", uses: &["seance-proto", "seance-operator-api"], tests_use: &[] },
    // It gives hostile bytes to whatever reads them.
    Wall { name: "seance-fuzz", uses: &[], tests_use: &["seance-core", "seance-engines", "seance-proto"] },
    // What is tried from inside is the same in a local sandbox and in a pod.
    Wall { name: "seance-hostile", uses: &["seance-proto", "seance-runner"], tests_use: &[] },
    Wall { name: "seance-tidy", uses: &["seance-core"], tests_use: &[] },
];

/// All that core may ask for: nothing here reads a file, a socket, a clock or an environment.
const CORE_MAY_ASK_FOR: &[&str] = &[
    "async-trait",
    "bytes",
    "hex",
    "indexmap",
    "serde",
    "serde_bytes",
    "serde_json",
    "sha2",
    "thiserror",
    "uuid",
];

/// Nothing of this is linked into core, through whatever it may ask for.
const NOT_IN_CORE: &[&str] = &[
    "tokio",
    "mio",
    "socket2",
    "nix",
    "rustix",
    "hyper",
    "h2",
    "tonic",
    "prost",
    "rustls",
    "reqwest",
    "sqlx",
    "sqlx-core",
    "libsqlite3-sys",
    "tracing",
    "kube",
    "async-std",
    "smol",
    "rand",
];

/// Nothing of this is linked into the runner: it holds no store, no service, no cluster.
const NOT_IN_RUNNER: &[&str] = &["sqlx", "sqlx-core", "libsqlite3-sys", "kube", "k8s-openapi", "axum-server"];

/// Crates that lean on one they may not, and requests for any version at all.
pub fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.members() {
        let Some(wall) = WALLS.iter().find(|wall| wall.name == package.name) else {
            let why = "a new crate needs a reason: a different trust side, a second user, or a heavy \
                       dependency to fence off; give it its walls in tests/tidy/src/walls.rs";
            findings.push(Finding::whole(&package.name, why));
            continue;
        };
        for asked in &package.dependencies {
            let in_tests = asked.kind.as_deref() == Some("dev");
            let name = asked.name.as_str();
            let may = wall.uses.contains(&name) || (in_tests && wall.tests_use.contains(&name));
            if asked.path.is_some() && !may {
                findings.push(Finding::whole(&package.name, format!("may not use {name}")));
            }
            if asked.req == "*" && asked.path.is_none() {
                findings.push(Finding::whole(&package.name, format!("takes any version of {name}")));
            }
            if wall.name == "seance-core" && !in_tests && !CORE_MAY_ASK_FOR.contains(&name) {
                findings
                    .push(Finding::whole("seance-core", format!("asks for {name}; core has no IO in it")));
            }
        }
    }
    for (name, banned) in [("seance-core", NOT_IN_CORE), ("seance-runner", NOT_IN_RUNNER)] {
        for linked in metadata.linked_by(name) {
            if banned.contains(&linked) {
                findings.push(Finding::whole(name, format!("links {linked}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Kind, Node, Package, Resolve, Use};

    /// A workspace of one crate that asks for `asked` (name, kind, whether it is of the workspace).
    fn workspace(name: &str, asked: &[(&str, Option<&str>, bool)]) -> Metadata {
        let dependencies = asked.iter().map(|(name, kind, ours)| Dependency {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
            req: "1".to_owned(),
            path: ours.then(|| "somewhere".into()),
        });
        let package = Package {
            id: name.to_owned(),
            name: name.to_owned(),
            dependencies: dependencies.collect(),
            ..Package::default()
        };
        Metadata { workspace_members: vec![name.to_owned()], packages: vec![package], ..Metadata::default() }
    }

    fn messages(metadata: &Metadata) -> Vec<String> {
        check(metadata).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_arrow_that_is_in_the_design_may_be_there() {
        let metadata = workspace("seance-sessions", &[("seance-broker", None, true), ("tokio", None, false)]);
        assert_eq!(messages(&metadata), Vec::<String>::new());
    }

    #[test]
    fn an_arrow_from_the_runner_to_the_service_is_found_in_tests_too() {
        for kind in [None, Some("dev"), Some("build")] {
            let metadata = workspace("seance-runner", &[("seance-core", kind, true)]);
            assert_eq!(messages(&metadata), ["seance-runner: may not use seance-core"]);
        }
    }

    #[test]
    fn an_arrow_from_the_controller_to_the_service_is_found() {
        let metadata = workspace("seance-operator", &[("seance-store", None, true)]);
        assert_eq!(messages(&metadata), ["seance-operator: may not use seance-store"]);
    }

    #[test]
    fn what_tests_may_use_the_crate_may_not() {
        let asked = ("seance-runner", Some("dev"), true);
        assert_eq!(messages(&workspace("seance-sandbox", &[asked])), Vec::<String>::new());
        let found = messages(&workspace("seance-sandbox", &[("seance-runner", None, true)]));
        assert_eq!(found, ["seance-sandbox: may not use seance-runner"]);
    }

    #[test]
    fn core_with_a_runtime_is_found_asked_for_or_brought_along() {
        let asked = workspace("seance-core", &[("tokio", None, false)]);
        assert_eq!(messages(&asked), ["seance-core: asks for tokio; core has no IO in it"]);

        let mut brought = workspace("seance-core", &[("uuid", None, false)]);
        for name in ["uuid", "tokio"] {
            let package = Package { id: name.to_owned(), name: name.to_owned(), ..Package::default() };
            brought.packages.push(package);
        }
        let used = |pkg: &str| Use { pkg: pkg.to_owned(), dep_kinds: vec![Kind { kind: None }] };
        let node = |id: &str, pkg: &str| Node { id: id.to_owned(), deps: vec![used(pkg)] };
        brought.resolve = Resolve { nodes: vec![node("seance-core", "uuid"), node("uuid", "tokio")] };
        assert_eq!(messages(&brought), ["seance-core: links tokio"]);
    }

    #[test]
    fn a_crate_without_walls_and_a_request_for_any_version_are_found() {
        assert!(messages(&workspace("seance-extra", &[]))[0].starts_with("seance-extra: a new crate needs"));
        let mut any = workspace("seance-server", &[("tokio", None, false)]);
        any.packages[0].dependencies[0].req = "*".to_owned();
        assert_eq!(messages(&any), ["seance-server: takes any version of tokio"]);
    }
}
