//! What catalogs cost: looking at the largest one when it is put, a tool's first call, and the calls
//! after it.
//!
//! `cargo bench -p seance-broker`

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use seance_broker::catalog::CompiledCatalog;
use seance_core::catalog::{Catalog, TOOLS_MAX, Tool};
use seance_core::limits::Limits;
use serde_json::{Value, json};

/// As large as a tool of a catalog of so many can be: about 600 bytes.
fn schema(n: usize) -> Value {
    json!({
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": format!("what to search for in collection {n}"), "minLength": 1},
            "limit": {"type": "integer", "minimum": 1, "maximum": n + 100, "default": 10},
            "order": {"type": "string", "enum": ["newest", "oldest", "best"]},
            "filters": {"type": "array", "items": {"$ref": "#/$defs/filter"}}
        },
        "required": ["query"],
        "additionalProperties": false,
        "$defs": {"filter": {
            "type": "object",
            "properties": {"field": {"type": "string"}, "value": {"type": ["string", "number", "null"]}},
            "required": ["field"]
        }}
    })
}

/// The same with a pattern, whose validator is built at once.
fn schema_with_pattern(n: usize) -> Value {
    let mut schema = schema(n);
    schema["properties"]["query"]["pattern"] = json!(format!("^[a-z]{{1,{}}}$", n % 50 + 1));
    schema
}

fn catalog(n_tools: usize, schema: fn(usize) -> Value) -> Catalog {
    let tool = |n| Tool {
        name: format!("search_{n}"),
        description: String::new(),
        input_schema: Some(schema(n).to_string()),
        output_schema: None,
        read_only: true,
        replay_safe: false,
        timeout: None,
    };
    Catalog::new((0..n_tools).map(tool).collect()).expect("it is within the limits")
}

/// Resident memory of the process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn catalogs(c: &mut Criterion) {
    let largest = catalog(TOOLS_MAX, schema);
    drop(CompiledCatalog::compile(&catalog(64, schema)));
    let before = resident();
    let compiled = CompiledCatalog::compile(&largest).expect("its schemas are right");
    let bytes = resident().saturating_sub(before);
    println!("memory of {TOOLS_MAX} tools: {} KiB, {} bytes a tool", bytes / 1024, bytes / TOOLS_MAX);
    drop(compiled);

    c.bench_function("put 4096 tools", |b| b.iter(|| CompiledCatalog::compile(black_box(&largest))));
    let patterns = catalog(TOOLS_MAX / 8, schema_with_pattern);
    c.bench_function("put 512 tools with patterns", |b| {
        b.iter(|| CompiledCatalog::compile(black_box(&patterns)));
    });
    let one = catalog(1, schema);
    c.bench_function("put one tool", |b| b.iter(|| CompiledCatalog::compile(black_box(&one))));

    let (limits, arguments) =
        (Limits::default(), r#"{"query":"rust","filters":[{"field":"year","value":2024}]}"#);
    let compile = || CompiledCatalog::compile(&one).expect("its schema is right");
    c.bench_function("first call", |b| {
        b.iter_batched(
            compile,
            |compiled| compiled.check("search_0", arguments, &limits).map(|_| compiled),
            BatchSize::SmallInput,
        );
    });
    let compiled = compile();
    compiled.check("search_0", arguments, &limits).expect("the arguments are right");
    c.bench_function("call", |b| b.iter(|| compiled.check("search_0", black_box(arguments), &limits)));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = catalogs
}
criterion_main!(benches);
