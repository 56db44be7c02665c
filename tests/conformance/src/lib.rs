//! seance-conformance
