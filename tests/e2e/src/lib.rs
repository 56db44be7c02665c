//! Seance on a real Kubernetes, from an installed chart to the ends that sandboxes meet.
//!
//! Each test has a release of the chart and namespaces of its own, waits for conditions of the
//! cluster's objects and never for time to pass, and takes everything away again. What explains a
//! failure is collected before that.

pub mod agent;
pub mod collect;
pub mod helm;
pub mod node;
pub mod place;
pub mod reach;
pub mod run;
pub mod scenarios;
pub mod setting;
pub mod wait;
