//! Catalogs for tests.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod cases;
pub mod node;
pub mod random;

use seance_core::catalog::{Catalog, Tool};
use seance_engines::{Description, Engine};
use serde_json::Value;

pub fn javascript() -> &'static Engine {
    seance_engines::by_name("javascript").unwrap()
}

pub fn tool(name: &str) -> Tool {
    Tool {
        name: name.to_owned(),
        description: String::new(),
        input_schema: None,
        output_schema: None,
        read_only: false,
        replay_safe: false,
        timeout: None,
    }
}

pub fn catalog<'a>(names: impl IntoIterator<Item = &'a str>) -> Catalog {
    Catalog::new(names.into_iter().map(tool).collect()).unwrap()
}

pub fn describe(tools: Vec<Tool>) -> Description {
    describe_in("javascript", tools)
}

pub fn describe_in(engine: &str, tools: Vec<Tool>) -> Description {
    let engine = seance_engines::by_name(engine).unwrap();
    engine.describe::<&str>(&Catalog::new(tools).unwrap(), &[]).unwrap()
}

/// The declarations of one tool `t` with this input schema.
pub fn declared(input_schema: &Value) -> String {
    describe(vec![Tool { input_schema: Some(input_schema.to_string()), ..tool("t") }]).declarations
}

/// What the instructions show as code: all that a program finds.
pub fn surface(instructions: &str) -> &str {
    let (_, code) = instructions.split_once("\n```").unwrap();
    let (_, code) = code.split_once('\n').unwrap();
    code.rsplit_once("\n```").unwrap().0
}
