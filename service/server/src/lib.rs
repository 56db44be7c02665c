//! seance-server
