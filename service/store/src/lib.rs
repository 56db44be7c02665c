//! seance-store
