//! A tool's JSON Schemas, gone through once for every language: what shape values have, what limits
//! them beyond that, and the names of types.

mod merge;
mod notes;
mod pointer;
mod shape;
mod type_names;
mod walk;

pub(crate) use merge::{alternatives, common, forms};
pub(crate) use notes::{Remarks, cut};
pub(crate) use shape::{Further, Member, Object, Shape};
pub(crate) use type_names::TypeNames;
pub(crate) use walk::{Detail, Named, Shapes, walk};
