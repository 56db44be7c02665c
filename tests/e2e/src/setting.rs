//! What all tests of a run share.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use serde_json::{Value, json};

use crate::node::Node;
use crate::reach::Reach;
use crate::run::Options;

/// What all tests of a run share.
#[derive(Clone)]
pub struct Setting {
    /// The cluster.
    pub client: Client,
    /// Where what explains failures goes.
    pub logs: PathBuf,
    /// Commands that are clients' own checks.
    pub clients: Vec<String>,
    /// How the service is reached.
    pub reach: Reach,
    /// How long the API server stays away where that is tested.
    pub outage: Duration,
    /// `seance-conformance`.
    pub conformance: PathBuf,
    node: Option<Node>,
    charts: PathBuf,
    image_prefix: String,
    image_tag: String,
}

impl Setting {
    /// The setting of a run.
    pub fn new(client: Client, options: &Options) -> Self {
        Self {
            client,
            logs: options.logs.clone(),
            clients: options.clients.clone(),
            reach: options.reach,
            outage: Duration::from_secs(options.outage.into()),
            conformance: options.conformance(),
            node: options.node.clone().map(Node::new),
            charts: options.charts.clone(),
            image_prefix: options.image_prefix.clone(),
            image_tag: options.image_tag.clone(),
        }
    }

    /// The cluster's node.
    ///
    /// # Errors
    /// When there is none; tests that ask are left out then.
    pub fn node(&self) -> anyhow::Result<&Node> {
        self.node.as_ref().context("this test needs to be on the node")
    }

    /// The folder of a chart.
    pub fn chart(&self, name: &str) -> String {
        self.charts.join(name).to_string_lossy().into_owned()
    }

    /// An image of ours, as values name it.
    pub fn image(&self, name: &str) -> Value {
        let repository = format!("{}seance/{name}", self.image_prefix);
        json!({ "repository": repository, "tag": self.image_tag })
    }

    /// An image of ours, as pods name it.
    pub fn image_name(&self, name: &str) -> String {
        format!("{}seance/{name}:{}", self.image_prefix, self.image_tag)
    }
}
