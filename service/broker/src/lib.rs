//! The broker: which tool calls are allowed, and getting them answered.
//!
//! [`catalog`] knows the schemas and says whether a call's arguments and a tool's value are what
//! the catalog's owner declared. [`providers`] knows who answers: streams, in-process handlers, or
//! a client that posts an answer. Neither knows programs, budgets or the log: those are the session
//! machine's, which reserves a call before it comes here.

pub mod catalog;
pub mod providers;
