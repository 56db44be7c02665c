//! seance-cli
