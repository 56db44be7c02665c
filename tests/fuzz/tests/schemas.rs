//! Schemas of hostile callers: what is told to models.

use seance_core::catalog::{Catalog, Tool};
use seance_engines::{ALL, Description};
use seance_fuzz::texts;

/// Whatever the schemas say, each language describes them, the same each time and within its bounds, or names the
/// tool that it can't describe.
#[test]
fn any_schema_is_described_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        texts(bytes).for_each(|text| check(&text));
    });
}

fn check(text: &str) {
    let tool = Tool {
        name: "tool".to_owned(),
        description: text.chars().take(100).collect(),
        input_schema: Some(text.to_owned()),
        output_schema: Some(text.to_owned()),
        read_only: false,
        replay_safe: false,
        timeout: None,
    };
    let Ok(catalog) = Catalog::new(vec![tool]) else { return };
    for engine in ALL {
        match engine.describe::<&str>(&catalog, &[]) {
            Ok(description) => {
                let Description { instructions, aliases, .. } = &description;
                assert_eq!(aliases.len(), 1);
                assert!(instructions.len() < 256 * 1024, "{} bytes of {text:?}", instructions.len());
                assert_eq!(engine.describe::<&str>(&catalog, &[]).as_ref(), Ok(&description));
            }
            Err(error) => assert!(error.to_string().contains("tool"), "{error}"),
        }
    }
}
