//! What the operator puts into the cluster, as pure functions: pods, network policies, the CA that
//! runners trust, their service account.

pub mod link;
pub mod namespace;
pub mod pod;
