//! Floors: the least that the work could cost on this machine at this moment.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use seance_proto::v1alpha1 as proto;

use super::report::{Effort, millis, percentile};
use super::world::World;
use crate::client::Client;

/// Medians, in milliseconds unless said otherwise.
pub struct Floors {
    /// Starting a process that does nothing, and waiting for its end.
    pub process: f64,
    /// Making a QuickJS context and running `1+1` in it.
    pub context: f64,
    /// A request and its answer over gRPC in this process.
    pub grpc: f64,
    /// One durable row through the store's own library.
    pub commit: f64,
}

impl Floors {
    /// Measures all floors.
    pub async fn measure(world: &World, effort: Effort) -> Result<Self> {
        let commits = seance_store::measure_bare_commit(&world.folder, effort.samples(500));
        Ok(Self {
            process: process_start(effort.samples(200))?,
            context: bare_context(effort.samples(500))?,
            grpc: round_trip(&world.caller.client, effort.samples(2_000)).await?,
            commit: median(&commits.await.context("can't measure a bare commit")?),
        })
    }
}

/// The median, in milliseconds.
pub fn median(samples: &[Duration]) -> f64 {
    let samples: Vec<f64> = samples.iter().map(|sample| millis(*sample)).collect();
    percentile(&samples, 50.0)
}

fn process_start(n: usize) -> Result<f64> {
    let mut samples = Vec::with_capacity(n);
    for _ in 0..n {
        let began = Instant::now();
        std::process::Command::new("/bin/true").status().context("can't start /bin/true")?;
        samples.push(began.elapsed());
    }
    Ok(median(&samples))
}

/// A QuickJS context of this process's own, which adds one and one.
pub fn bare_context(n: usize) -> Result<f64> {
    let mut samples = Vec::with_capacity(n);
    for _ in 0..n {
        let began = Instant::now();
        let runtime = rquickjs::Runtime::new()?;
        let context = rquickjs::Context::full(&runtime)?;
        let two: i32 = context.with(|context| context.eval("1+1"))?;
        samples.push(began.elapsed());
        anyhow::ensure!(two == 2, "QuickJS can't add");
    }
    Ok(median(&samples))
}

/// A request that reads memory alone, and its answer.
pub async fn round_trip(client: &Client, n: usize) -> Result<f64> {
    let mut server = client.server.clone();
    let mut samples = Vec::with_capacity(n);
    for _ in 0..n {
        let began = Instant::now();
        server.get_info(proto::GetInfoRequest {}).await?;
        samples.push(began.elapsed());
    }
    Ok(median(&samples))
}
