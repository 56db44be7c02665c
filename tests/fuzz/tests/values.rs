//! Text of hostile programs, providers and callers: the value parser.

use seance_core::value::{Bounds, Error, JsonText};
use seance_fuzz::texts;

/// What is accepted is what another parser accepts, and is accepted again as it is; what a program may write is what
/// anyone may write, once its halves of surrogate pairs are replaced.
#[test]
fn values_are_json_to_others_too_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        texts(bytes).for_each(|text| check(&text));
    });
}

fn check(text: &str) {
    let bounds = Bounds { bytes_max: 4096, depth_max: 100, count_max: 1000, digits_max: 400 };
    let other: Result<serde_json::Value, _> = serde_json::from_str(text);
    match JsonText::parse(text, &bounds) {
        Ok(value) => {
            let other = other.unwrap_or_else(|error| panic!("{text:?} was accepted, and {error}"));
            assert_eq!(value.to_value(), other);
            assert_eq!(JsonText::parse(value.as_str(), &bounds).as_ref(), Ok(&value));
            assert_eq!(JsonText::parse_guest(text, &bounds).as_ref(), Ok(&value));
        }
        Err(Error::LoneSurrogate { .. }) => {
            if let Ok(value) = JsonText::parse_guest(text, &bounds) {
                assert_eq!(JsonText::parse(value.as_str(), &bounds).as_ref(), Ok(&value));
            }
        }
        Err(Error::Syntax { .. }) => {
            assert!(other.is_err(), "{text:?} was refused, and another parser takes it")
        }
        // Over a bound of ours.
        Err(_) => {}
    }
}
