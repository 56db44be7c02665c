//! Which tests there are, and running them: a few at a time, each with a deadline, everything
//! collected and taken away whatever came of it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use kube::Client;

use crate::place::Place;
use crate::reach::Reach;
use crate::setting::Setting;
use crate::{helm, scenarios};

/// A test may take so long, with its installation: the acceptance lists are the longest.
const DEADLINE: Duration = Duration::from_secs(1800);

/// Runs Seance's tests on the Kubernetes that KUBECONFIG names. helm has to be on the PATH, the images
/// on the nodes.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Options {
    /// Runs only these tests.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<String>,
    /// Lists the tests with what they show, and runs none.
    #[arg(long)]
    pub list: bool,
    /// How many tests run at the same time.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub jobs: u8,
    /// Where the charts are.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts"), value_name = "FOLDER")]
    pub charts: PathBuf,
    /// What explains failures is written here.
    #[arg(long, default_value = "e2e-logs", value_name = "FOLDER")]
    pub logs: PathBuf,
    /// What stands before the images' names, such as registry.example.com/team/.
    #[arg(long, default_value = "", value_name = "PREFIX")]
    pub image_prefix: String,
    /// The images' tag.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"), value_name = "TAG")]
    pub image_tag: String,
    /// How the service is reached.
    #[arg(long, value_enum, default_value_t = Reach::Address)]
    pub reach: Reach,
    /// A client's own checks: a command that reads SEANCE_ADDRESS, SEANCE_CA, SEANCE_TOKEN_FILE,
    /// SEANCE_SERVER_NAME and SEANCE_TENANT. May be given several times; they run in the test `clients`.
    #[arg(long = "client", value_name = "COMMAND")]
    pub clients: Vec<String>,
    /// The folder of the cluster of tests/cluster that this runs in, for the tests that stop its components,
    /// kill processes of pods or cut their links. Without it they are left out.
    #[arg(long, env = "CLUSTER_DIR", value_name = "FOLDER")]
    pub node: Option<PathBuf>,
    /// Images of tests that the nodes have beside Seance's and seance/test. What needs others is left out.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub images: Vec<String>,
    /// `seance-conformance`, which runs the acceptance lists; beside this program when it isn't named.
    #[arg(long, value_name = "FILE")]
    pub conformance: Option<PathBuf>,
    /// How many seconds the API server stays away in the test `outage`.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(5..=600))]
    pub outage: u32,
    /// Leaves what failed as it is, to look at it.
    #[arg(long)]
    pub keep: bool,
}

impl Options {
    /// Where `seance-conformance` is.
    pub fn conformance(&self) -> PathBuf {
        let beside = || std::env::current_exe().unwrap_or_default().with_file_name("seance-conformance");
        self.conformance.clone().unwrap_or_else(beside)
    }
}

/// One test.
pub struct Test {
    /// Its name; namespaces have it in theirs.
    pub name: &'static str,
    /// What it shows, with the lines of the acceptance lists.
    pub shows: &'static str,
    /// The test itself.
    pub run: for<'a> fn(&'a mut Place) -> BoxFuture<'a, anyhow::Result<()>>,
    /// When it runs.
    pub when: When,
    /// What it can't do without.
    pub needs: &'static [Need],
}

/// When a test runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Beside others.
    Beside,
    /// With nothing beside it, after the others: it takes something away from the whole cluster.
    Alone,
    /// As `Alone`, and only when it is named: it takes long.
    Named,
}

/// What not every run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Commands that are clients' own checks.
    Clients,
    /// To be on the cluster's node.
    Node,
    /// An image of this name on the nodes.
    Image(&'static str),
    /// The program that runs the acceptance lists.
    Conformance,
}

impl Need {
    fn is_met(self, options: &Options) -> bool {
        match self {
            Need::Clients => !options.clients.is_empty(),
            Need::Node => options.node.is_some(),
            Need::Image(name) => options.images.iter().any(|image| image == name),
            Need::Conformance => options.conformance().is_file(),
        }
    }

    /// The option that gives it.
    fn option(self) -> String {
        match self {
            Need::Clients => "--client COMMAND".to_owned(),
            Need::Node => "--node FOLDER".to_owned(),
            Need::Image(name) => format!("--images {name}"),
            Need::Conformance => "--conformance FILE".to_owned(),
        }
    }
}

/// Runs what was asked for; whether all of it passed.
///
/// # Errors
/// When nothing can be run: no cluster, no helm, no test of a name.
pub async fn run(options: Options) -> anyhow::Result<bool> {
    let tests = chosen(&options)?;
    if options.list {
        for test in tests {
            let needs: Vec<String> = test.needs.iter().map(|need| need.option()).collect();
            let named = if test.when == When::Named { " (only when it is named)" } else { "" };
            println!("{:<22} {}{named} {}", test.name, test.shows, needs.join(", "));
        }
        return Ok(true);
    }
    let client = Client::try_default().await.context("finding the cluster")?;
    let setting = Setting::new(client, &options);
    helm::install_resources(&setting).await.context("installing the custom resources")?;
    let n_tests = tests.len();
    let began = Instant::now();
    let (beside, alone): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.when == When::Beside);
    let mut n_passed = 0;
    for (at_one_time, tests) in [(options.jobs.into(), beside), (1, alone)] {
        let running = tests.into_iter().map(|test| one(test, setting.clone(), options.keep));
        let passed = futures::stream::iter(running).buffer_unordered(at_one_time);
        n_passed += passed.filter(|passed| futures::future::ready(*passed)).count().await;
    }
    let n_failed = n_tests - n_passed;
    println!("\n{n_passed} passed, {n_failed} failed in {} s", began.elapsed().as_secs());
    if n_failed > 0 {
        println!("what explains the failures is in {}", options.logs.display());
    }
    Ok(n_failed == 0)
}

fn chosen(options: &Options) -> anyhow::Result<Vec<Test>> {
    let only = &options.only;
    let mut all = scenarios::all();
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|test| test.name == *name)) {
        bail!("no test is called {unknown}; see --list");
    }
    let missing = |test: &Test| test.needs.iter().find(|need| !need.is_met(options)).copied();
    if only.is_empty() {
        // All of them are listed, and those run that this run has everything for.
        all.retain(|test| options.list || (test.when != When::Named && missing(test).is_none()));
        return Ok(all);
    }
    all.retain(|test| only.iter().any(|name| name == test.name));
    if let Some((test, need)) = all.iter().find_map(|test| Some((test, missing(test)?))) {
        bail!("the test {} needs {}", test.name, need.option());
    }
    Ok(all)
}

/// Runs a test and takes away what it made.
async fn one(test: Test, setting: Setting, keep: bool) -> bool {
    let began = Instant::now();
    let logs = setting.logs.join(test.name);
    let mut place = Place::new(setting, test.name);
    // A panic is a failure like any other: what was made has to go.
    let running = std::panic::AssertUnwindSafe((test.run)(&mut place)).catch_unwind();
    let result = match tokio::time::timeout(DEADLINE, running).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(anyhow::anyhow!("it panicked")),
        Err(_) => Err(anyhow::anyhow!("it was not over within {} s", DEADLINE.as_secs())),
    };
    let result = match result {
        Ok(()) => place.remove().await.context("removing what the test made"),
        Err(error) => {
            place.collect(&logs).await;
            if !keep && let Err(removing) = place.remove().await {
                println!("{}: what it made could not be removed: {removing:#}", test.name);
            }
            Err(error)
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    match &result {
        Ok(()) => println!("passed  {:<22} {seconds:>6.1} s  {}", test.name, test.shows),
        Err(error) => println!("FAILED  {:<22} {seconds:>6.1} s  {error:#}", test.name),
    }
    result.is_ok()
}
