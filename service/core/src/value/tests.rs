use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn refusal(text: &str) -> String {
    check(text, &Bounds::default()).unwrap_err().to_string()
}

fn json(text: &str) -> JsonText {
    JsonText::parse(text, &Bounds::default()).unwrap()
}

#[test]
fn a_refusal_says_what_and_where() {
    for (text, expected) in [
        ("", "not JSON: the text ends too early at $ (byte 0)"),
        (r#"{"a":[1,2,3,}"#, "not JSON: expected a value at $.a[3] (byte 12)"),
        (r#"{"a b":{"c":tru}}"#, r#"not JSON: expected true, false or null at $["a b"].c (byte 12)"#),
        ("[1] 2", "not JSON: more text after the value at $ (byte 4)"),
        ("[1}", "not JSON: expected a comma or the end of the array at $[0] (byte 2)"),
        (r#"{"a":1,}"#, "not JSON: expected a key in quotes at $.a (byte 7)"),
        (r#"{"a" 1}"#, "not JSON: expected a colon after the key at $.a (byte 5)"),
        ("\"a\nb\"", "not JSON: a control character inside a string at $ (byte 2)"),
        (r#""\x""#, "not JSON: an invalid escape inside a string at $ (byte 1)"),
        ("\"abc", "not JSON: the text ends inside a string at $ (byte 4)"),
        ("[0, -01]", "not JSON: an invalid number at $[1] (byte 4)"),
        ("\u{feff}1", "not JSON: expected a value at $ (byte 0)"),
        (r#"["\ud800\ud800"]"#, "a string has half of a surrogate pair at $[0] (byte 2)"),
        ("[1e999]", "a number is too large for a double at $[0] (byte 1)"),
    ] {
        assert_eq!(refusal(text), expected, "{text}");
    }
}

#[test]
fn what_is_beyond_its_bounds_is_refused_with_the_bound() {
    let bounds = Bounds { bytes_max: 100, depth_max: 2, count_max: 4, digits_max: 5 };
    for good in ["[[1,2]]", "[1,2,3]", "12345", "-1.23e4", r#"{"a":{"b":0}}"#] {
        check(good, &bounds).unwrap();
    }
    let refused = |text: &str| check(text, &bounds).unwrap_err();
    assert_eq!(refused(&" ".repeat(101)), Error::Bytes { bytes: 101, max: 100 });
    let at = |path: &str, offset| Place { path: path.to_owned(), offset };
    assert_eq!(refused("[[[1]]]"), Error::Depth { max: 2, at: at("$[0][0]", 2) });
    assert_eq!(refused("[1,2,3,4]"), Error::Count { max: 4, at: at("$[3]", 7) });
    assert_eq!(refused("[123456]"), Error::Digits { digits: 6, max: 5, at: at("$[0]", 1) });
}

/// The issue's bad input: nesting of 100,000, an integer of 10,000 digits.
#[test]
fn hostile_texts_are_typed_errors() {
    for opening in ["[", r#"{"a":"#] {
        let deep = opening.repeat(100_000);
        assert!(matches!(check(&deep, &Bounds::default()), Err(Error::Depth { max: 512, .. })));
    }
    let digits = "9".repeat(10_000);
    assert!(matches!(check(&digits, &Bounds::default()), Err(Error::Digits { digits: 10_000, .. })));
    check(&digits[..4_300], &Bounds::default()).unwrap();
    let long_key = format!(r#"{{"{}":x}}"#, "k".repeat(100_000));
    assert!(refusal(&long_key).len() < 600);
}

/// Case 32: an argument 500 deep is a value, and can be had as a tree.
#[test]
fn five_hundred_deep_is_a_value() {
    let deep = format!("{}1{}", r#"{"node":"#.repeat(500), "}".repeat(500));
    let mut value = &json(&deep).to_value();
    for _ in 0..500 {
        value = &value["node"];
    }
    assert_eq!(value, 1);
}

/// Case 16: numbers stay as they are written.
#[test]
fn a_value_stays_the_text_it_came_as() {
    let text = r#" {"id":9007199254740993,"x":1.10,"e":1E5} "#;
    let value = json(text);
    assert_eq!(value.as_str(), text.trim());
    assert_eq!(value.to_value()["id"].to_string(), "9007199254740993");
    assert_eq!(serde_json::from_str::<JsonText>(&serde_json::to_string(&value).unwrap()).unwrap(), value);
    assert!(serde_json::from_str::<JsonText>(r#""[1,]""#).is_err());
    assert_eq!(json(r#"{"a":1,"a":2}"#).to_value(), serde_json::json!({"a": 2}));
    let kinds = ["{}", "[]", "\"\"", "-1", "true", "null"].map(|text| json(text).kind());
    assert_eq!(kinds, [Kind::Object, Kind::Array, Kind::String, Kind::Number, Kind::Bool, Kind::Null]);
}

#[test]
fn half_surrogate_pairs_of_a_program_become_replacement_characters() {
    let guest = |text: &str| JsonText::parse_guest(text, &Bounds::default()).unwrap().into_string();
    assert_eq!(
        guest(r#"["\ud83d","\ud83d\ude42\udE42", "\\ud800"]"#),
        r#"["\ufffd","\ud83d\ude42\ufffd", "\\ud800"]"#
    );
    assert!(matches!(JsonText::parse_guest(r#"["\ud83d",]"#, &Bounds::default()), Err(Error::Syntax { .. })));
}

fn cut_to(text: &str, max_bytes: usize) -> String {
    let cut = cut(&json(text), max_bytes).expect("it does not fit");
    assert_eq!(cut.original_bytes, text.len());
    cut.json
}

/// Case 69.
#[test]
fn what_is_cut_says_what_is_missing() {
    assert_eq!(cut(&json("[1,2,3]"), 64), None);
    let numbers = Value::from((0..1000).collect::<Vec<_>>()).to_string();
    assert_eq!(cut_to(&numbers, 64), r#"[0,1,2,3,4,5,6,7,8,"…991 items truncated…"]"#);
    assert_eq!(
        cut_to(&serde_json::json!({"a": "x".repeat(900), "b": 1, "c": [true]}).to_string(), 100),
        r#"{"a":"xxxxxxxxxxxxxx…872 characters truncated…xxxxxxxxxxxxxx","b":1,"c":[true]}"#
    );
    let object: serde_json::Map<String, Value> = (0..100).map(|n| (format!("k{n}"), n.into())).collect();
    assert_eq!(
        cut_to(&Value::from(object).to_string(), 70),
        r#"{"k0":0,"k1":1,"k2":2,"…":"97 keys truncated"}"#
    );
    assert_eq!(cut_to(&"7".repeat(200), 64), r#""77777777…185 characters truncated…7777777""#);
    assert_eq!(
        cut_to(&format!("\"{}\"", r"\u00e9\n".repeat(100)), 64),
        r#""\u00e9\n…197 characters truncated…\n""#
    );
}

#[test]
fn a_smaller_budget_adds_to_the_counts_of_an_earlier_cut() {
    let numbers = Value::from(vec![7; 1000]).to_string();
    for text in [numbers, format!("\"{}\"", "y".repeat(1000))] {
        let direct = cut_to(&text, 70);
        let twice = cut_to(&cut_to(&text, 200), 70);
        assert_eq!(direct, twice);
    }
}

#[test]
fn deep_and_wide_values_are_cut_in_one_pass() {
    let deep = format!("{}{}{}", r#"[{"a":"#.repeat(250), "1".repeat(4_000), "}]".repeat(250));
    let cut = cut_to(&deep, 1_000);
    assert!(cut.len() <= 1_000);
    json(&cut);
    let wide = format!("[{}]", vec![r#"{"id":9007199254740993,"name":"a name"}"#; 100_000].join(","));
    let started = Instant::now();
    assert!(cut_to(&wide, 65_536).len() > 60_000);
    // Well below a second of work without optimisation; the bound only tells one pass from many.
    assert!(started.elapsed() < Duration::from_secs(30));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(Value::from),
        "[ -~é🙂\\\\\"\n…]{0,60}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 200, 12, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..12).prop_map(Value::from),
            prop::collection::vec(("[a-c…\"\\\\]{0,40}", inner), 0..12)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn every_value_is_read_as_serde_json_reads_it(value in any_json(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let text = text.unwrap();
        prop_assert_eq!(json(&text).to_value(), serde_json::from_str::<Value>(&text).unwrap());
    }

    /// Texts that are JSON or nearly so: what serde_json takes, we take, and nothing else.
    #[test]
    fn it_accepts_what_serde_json_accepts(
        text in r#"([\[\]{},:"0-9.eE+\-ntu \n]|true|null|"a"|\\u[dD][89c-f][0-9]0|\\n|1|"b":){0,12}"#,
    ) {
        // serde_json takes 1e999 as text; for us it is a double.
        let ours = check(&text, &Bounds::default());
        if !matches!(ours, Err(Error::NumberOverflow { .. })) {
            prop_assert_eq!(ours.is_ok(), serde_json::from_str::<Value>(&text).is_ok(), "{:?}", ours);
        }
    }

    #[test]
    fn one_changed_byte_is_judged_as_serde_json_judges_it(value in any_json(), at: prop::sample::Index, new in 0u8..0x80) {
        let mut bytes = value.to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = new;
        if let Ok(text) = String::from_utf8(bytes) {
            let ours = check(&text, &Bounds::default());
            if !matches!(ours, Err(Error::NumberOverflow { .. })) {
                prop_assert_eq!(ours.is_ok(), serde_json::from_str::<Value>(&text).is_ok(), "{:?} {}", ours, text);
            }
        }
    }

    #[test]
    fn a_cut_is_a_value_within_its_budget_and_stable(value in any_json(), max_bytes in 64usize..600) {
        let text = JsonText::parse(value.to_string(), &Bounds::default()).unwrap();
        if let Some(cut_once) = cut(&text, max_bytes) {
            prop_assert!(cut_once.json.len() <= max_bytes, "{}", cut_once.json);
            let again = JsonText::parse(cut_once.json, &Bounds::default()).unwrap();
            prop_assert_eq!(cut(&again, max_bytes), None);
        }
    }
}
