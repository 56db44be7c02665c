//! seance-broker
