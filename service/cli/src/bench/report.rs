//! Figures, and how they are shown: as a table, as JSON, and as files of raw samples.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets};

use crate::args::Bench;

/// One measured figure.
pub struct Figure {
    /// The name, which is never changed.
    pub name: &'static str,
    /// "ms", "1/s", "bytes", "bytes/s" or "calls".
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

    /// A number of repetitions: all of them, or one.
    pub fn rounds(self, n: usize) -> usize {
        if self.quick { 1 } else { n }
    }
}

/// Figures of a world that are measured together, beside its floors.
pub struct Group<World, Floors> {
    /// Their names.
    pub names: &'static [&'static str],
    /// How.
    pub measure: for<'a> fn(&'a World, &'a Floors, Effort) -> Measured<'a>,
}

/// A measurement at work.
pub type Measured<'a> = Pin<Box<dyn Future<Output = Result<Vec<Figure>>> + 'a>>;

/// What was asked for, and what was measured of it so far.
pub struct Report {
    only: Vec<String>,
    samples: Option<PathBuf>,
    json: bool,
    table: Table,
    /// How much is measured.
    pub effort: Effort,
}

impl Report {
    /// A report without a figure.
    ///
    /// # Errors
    /// When a figure that is wanted is none of the `known`, or the folder of the samples can't be made.
    pub fn new(bench: &Bench, json: bool, known: &[&str]) -> Result<Self> {
        if let Some(unknown) = bench.only.iter().find(|name| !known.contains(&name.as_str())) {
            bail!("there is no figure {unknown:?}; there are {}", known.join(", "));
        }
        if let Some(folder) = &bench.samples {
            std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["FIGURE", "UNIT", "N", "P50", "P99", "FLOOR P50", "RATIO", "FLOOR"]);
        let effort = Effort { quick: bench.quick };
        Ok(Self { only: bench.only.clone(), samples: bench.samples.clone(), json, table, effort })
    }

    /// Whether a figure was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// Whether one of these figures was asked for.
    pub fn wants_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.wants(name))
    }

    /// Measures a group and takes what was asked for of it.
    pub async fn measure<World, Floors>(
        &mut self,
        group: &Group<World, Floors>,
        world: &World,
        floors: &Floors,
    ) -> Result<()> {
        let names = group.names.join(", ");
        eprintln!("measuring {names} …");
        let measured = (group.measure)(world, floors, self.effort).await;
        for figure in measured.with_context(|| format!("can't measure {names}"))? {
            self.take(&figure)?;
        }
        Ok(())
    }

    fn take(&mut self, figure: &Figure) -> Result<()> {
        if !self.wants(figure.name) {
            return Ok(());
        }
        if let Some(folder) = &self.samples {
            keep_samples(folder, figure)?;
        }
        if self.json {
            println!("{}", figure.to_json());
        } else {
            self.table.add_row(figure.to_row());
        }
        Ok(())
    }

    /// Shows what hasn't been shown yet.
    pub fn finish(self) {
        if !self.json && self.table.row_count() > 0 {
            println!("{}", self.table);
        }
    }
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
    use super::*;

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&samples, 50.0), 50.0);
        assert_eq!(percentile(&samples, 99.0), 99.0);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn a_figure_is_one_object_of_six_members() {
        let mut figure =
            Figure { name: "bare_pod", unit: "ms", samples: vec![3.0, 1.0, 2.0], floor_p50: None, floor: "" };
        let object = r#"{"name":"bare_pod","unit":"ms","n":3,"p50":2.0,"p99":3.0,"floor_p50":null}"#;
        assert_eq!(figure.to_json().to_string(), object);
        figure.floor_p50 = Some(0.5);
        assert!(figure.to_json().to_string().ends_with(r#""floor_p50":0.5}"#));
        assert_eq!(figure.to_row()[6], "4.00");
    }
}
