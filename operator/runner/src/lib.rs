//! seance-runner
