//! seance-core
