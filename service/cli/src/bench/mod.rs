//! `seance bench`: what sessions cost on this machine, each figure beside a floor of the same run.
//!
//! A figure alone says little: machines differ, and so do moments. The floor is the least that the
//! same work could cost here and now, such as a bare commit to the same disk.

mod figures;
mod floors;
mod process;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets};

use crate::args::Bench;
use figures::FIGURES;
use floors::Floors;
use world::World;

/// One measured figure.
pub struct Figure {
    /// The name, which is never changed.
    pub name: &'static str,
    /// "ms", "1/s", "bytes" or "bytes/s".
    pub unit: &'static str,
    /// The samples, in the unit.
    pub samples: Vec<f64>,
    /// The floor's median of the same run, in the unit; none where there is no such thing.
    pub floor_p50: Option<f64>,
    /// What the floor is.
    pub floor: &'static str,
}

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Effort {
    quick: bool,
}

impl Effort {
    /// A number of samples: all of it, or a tenth.
    pub fn samples(self, n: usize) -> usize {
        if self.quick { (n / 10).max(3) } else { n }
    }
}

/// Measures and prints.
pub async fn bench(bench: Bench, json: bool) -> Result<ExitCode> {
    let known: Vec<_> = FIGURES.iter().flat_map(|group| group.names).copied().collect();
    if let Some(unknown) = bench.only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no figure {unknown:?}; there are {}", known.join(", "));
    }
    if let Some(folder) = &bench.samples {
        std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    }
    if cfg!(debug_assertions) {
        eprintln!("seance: this is a debug build; its figures say nothing about a release");
    }
    let effort = Effort { quick: bench.quick };
    let wanted = |name: &str| bench.only.is_empty() || bench.only.iter().any(|only| only == name);
    let world = World::start().await?;
    figures::until_warm(&world).await;
    let floors = Floors::measure(&world, effort).await?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["FIGURE", "UNIT", "N", "P50", "P99", "FLOOR P50", "RATIO", "FLOOR"]);
    for group in FIGURES.iter().filter(|group| group.names.iter().any(|name| wanted(name))) {
        eprintln!("measuring {} …", group.names.join(", "));
        figures::until_warm(&world).await;
        let measured = (group.measure)(&world, &floors, effort).await;
        for figure in measured.with_context(|| format!("can't measure {}", group.names.join(", ")))? {
            if !wanted(figure.name) {
                continue;
            }
            if let Some(folder) = &bench.samples {
                keep_samples(folder, &figure)?;
            }
            if json {
                println!("{}", figure.to_json());
            } else {
                table.add_row(figure.to_row());
            }
        }
    }
    world.stop().await;
    if !json {
        println!("{table}");
    }
    Ok(ExitCode::SUCCESS)
}

impl Figure {
    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name,
            "unit": self.unit,
            "n": self.samples.len(),
            "p50": percentile(&self.samples, 50.0),
            "p99": percentile(&self.samples, 99.0),
            "floor_p50": self.floor_p50,
        })
    }

    fn to_row(&self) -> [String; 8] {
        let (p50, p99) = (percentile(&self.samples, 50.0), percentile(&self.samples, 99.0));
        let ratio = self.floor_p50.map_or(String::new(), |floor| format!("{:.2}", p50 / floor));
        [
            self.name.to_owned(),
            self.unit.to_owned(),
            self.samples.len().to_string(),
            number(p50),
            number(p99),
            self.floor_p50.map_or(String::new(), number),
            ratio,
            self.floor.to_owned(),
        ]
    }
}

fn keep_samples(folder: &Path, figure: &Figure) -> Result<()> {
    let path = folder.join(format!("{}.txt", figure.name));
    let lines: String = figure.samples.iter().map(|sample| format!("{sample}\n")).collect();
    std::fs::write(&path, lines).with_context(|| format!("can't write {}", path.display()))
}

fn number(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// A percentile by the nearest rank; 0 of no samples.
pub fn percentile(samples: &[f64], percent: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&samples, 50.0), 50.0);
        assert_eq!(percentile(&samples, 99.0), 99.0);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }
}
