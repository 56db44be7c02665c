//! The definitions of the custom resources as files of the chart `charts/seance-crds`.
//!
//! They are made by `cargo run -p seance-operator-api --example crds`, and a test holds the
//! committed ones against the types.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::{Deserialize, Serialize};

use crate::{Sandbox, SandboxPool};

/// Where the files are, from the top of the repository.
pub const FOLDER: &str = "charts/seance-crds/templates";

const HEADER: &str =
    "# Made by `cargo run -p seance-operator-api --example crds`; change operator/api instead.\n";

/// One file of the chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name in [`FOLDER`].
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// The definitions, in the order of their names. Helm leaves them on uninstall: taking them away
/// takes every object of theirs away.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [Sandbox::crd(), SandboxPool::crd()].map(|mut crd| {
        let annotations = crd.metadata.annotations.get_or_insert_default();
        annotations.insert("helm.sh/resource-policy".to_owned(), "keep".to_owned());
        crd
    })
}

/// The files as they must be.
pub fn files() -> Vec<File> {
    let file = |crd: &CustomResourceDefinition| File {
        name: format!("{}.yaml", crd.spec.names.plural),
        text: format!("{HEADER}{}", yaml(crd)),
    };
    definitions().iter().map(file).collect()
}

fn yaml(crd: &CustomResourceDefinition) -> String {
    let json = serde_json::to_string(crd).expect("a definition is plain data with text keys");
    let plain: Plain = serde_saphyr::from_str(&json).expect("JSON is YAML");
    serde_saphyr::to_string(&plain).expect("plain data with text keys")
}

/// Data as YAML has it. Numbers of `serde_json` may be kept as text under a key of its own, which
/// other formats would write out.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Plain {
    Bool(bool),
    Integer(i64),
    #[serde(serialize_with = "whole_if_it_is")]
    Float(f64),
    Text(String),
    List(Vec<Plain>),
    Map(BTreeMap<String, Plain>),
    Null,
}

fn whole_if_it_is<S: serde::Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    // Bounds are floats in the schema, and whole in what we write.
    let whole = *number as i64;
    if whole as f64 == *number { serializer.serialize_i64(whole) } else { serializer.serialize_f64(*number) }
}
