//! seance-engines
