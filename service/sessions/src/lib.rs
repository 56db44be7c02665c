//! seance-sessions
