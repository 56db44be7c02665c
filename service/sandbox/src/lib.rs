//! seance-sandbox
