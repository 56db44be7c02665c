//! Floors of a service that is elsewhere: the least that the work could cost from here, now.

use std::time::Instant;

use anyhow::Result;
use seance_proto::v1alpha1 as proto;

use super::World;
use crate::bench::floors::{bare_context, median, round_trip};
use crate::bench::report::Effort;

/// Medians, in milliseconds.
pub struct Floors {
    /// A request that the service answers from memory, and its answer.
    pub grpc: f64,
    /// A small durable write of the service's: what storing a catalog takes over a round trip.
    pub commit: f64,
    /// Making a QuickJS context and running `1+1` in it, on the machine that the bench runs on.
    pub context: f64,
}

impl Floors {
    /// Measures all floors.
    pub async fn measure(world: &World, effort: Effort) -> Result<Self> {
        let grpc = round_trip(&world.caller.client, effort.samples(2_000)).await?;
        let stored = stored_catalog(world, effort.samples(100)).await?;
        Ok(Self { grpc, commit: (stored - grpc).max(0.0), context: bare_context(effort.samples(500))? })
    }
}

async fn stored_catalog(world: &World, n: usize) -> Result<f64> {
    let mut tools = world.caller.client.tools.clone();
    let mut samples = Vec::with_capacity(n);
    for number in 0..n {
        // One that the service has already isn't written.
        let description = format!("bench {} {number}", world.made.run);
        let tool = proto::Tool { name: "tick".to_owned(), description, ..Default::default() };
        let catalog = Some(proto::Catalog { tools: vec![tool] });
        let request = proto::PutCatalogRequest { catalog, ..Default::default() };
        let began = Instant::now();
        tools.put_catalog(request).await?;
        samples.push(began.elapsed());
    }
    Ok(median(&samples))
}
