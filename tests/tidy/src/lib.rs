//! seance-tidy
