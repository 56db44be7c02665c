//! Pages under `docs/` that are made from tables in the code.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use seance_core::{catalog, limits, reasons};

use crate::{Finding, repo::Files};

const MADE: &str = "<!-- Made from the code by `cargo run -p seance-tidy -- write`; don't edit. -->";

/// The pages by path.
fn all() -> [(&'static str, String); 2] {
    [("docs/reasons.md", reasons_page()), ("docs/limits.md", limits_page())]
}

/// Writes the pages under `root`.
///
/// # Errors
/// When a file can't be written.
pub fn write(root: &Path) -> Result<()> {
    for (path, text) in all() {
        let whole = root.join(path);
        std::fs::create_dir_all(whole.parent().context("a page is in a folder")?)?;
        std::fs::write(&whole, text).with_context(|| format!("write {path}"))?;
    }
    Ok(())
}

/// Pages that aren't what the code says now.
pub fn check(files: &Files) -> Vec<Finding> {
    all()
        .into_iter()
        .filter(|(path, text)| files.get(*path).and_then(Option::as_ref) != Some(text))
        .map(|(path, _)| Finding::whole(path, "is out of date; run `cargo run -p seance-tidy -- write`"))
        .collect()
}

/// A kind of place where reasons appear: its heading and what to know of it.
struct Section {
    heading: &'static str,
    about: &'static str,
    has: fn(reasons::Place) -> bool,
}

const SECTIONS: &[Section] = &[
    Section {
        heading: "Statuses",
        about: "What the host, the lifecycle or clean-up did wrong, or the request itself, is a gRPC status. Its \
                reason is in `ErrorInfo.reason` (domain `seance.dev`), in the trailer `seance-reason`, and in the \
                message.",
        has: |place| matches!(place, reasons::Place::Status(_)),
    },
    Section {
        heading: "Codes of programs",
        about: "What the program itself did wrong, limits included: `Program.error.code` of a program that ended \
                as `ERROR`. An uncaught failure of a call has the call's code.",
        has: |place| place == reasons::Place::Program,
    },
    Section {
        heading: "Codes of tool calls",
        about: "`ToolError.code`, which the program can catch. A tool's own codes appear there too.",
        has: |place| place == reasons::Place::Call,
    },
    Section {
        heading: "Reasons of programs",
        about: "`Program.reason` of a program that ended as `TERMINATED`, `LOST` or `NOT_STARTED`.",
        has: |place| place == reasons::Place::ProgramReason,
    },
    Section {
        heading: "Warnings",
        about: "`Warning.code`: something to know about a result that is no failure.",
        has: |place| place == reasons::Place::Warning,
    },
    Section {
        heading: "Reasons of sandboxes",
        about: "`SandboxEnded.reason`, and `Program.reason` of a program that ran there.",
        has: |place| place == reasons::Place::Sandbox,
    },
    Section {
        heading: "Reasons of sessions",
        about: "`Session.reason`: why it is closing or closed.",
        has: |place| place == reasons::Place::Session,
    },
];

fn reasons_page() -> String {
    let mut page = format!(
        "# Reasons and codes\n\n{MADE}\n\nEvery reason and code that a caller can see. None is ever renamed. *Again* \
         tells whether the very same request can succeed later.\n"
    );
    for section in SECTIONS {
        let _ = write!(page, "\n## {}\n\n{}\n\n", section.heading, section.about);
        let _ = writeln!(
            page,
            "| name | gRPC code | again | what it means | what to do |\n|---|---|---|---|---|"
        );
        for row in reasons::TABLE.iter().filter(|row| (section.has)(row.place)) {
            let code = match row.place {
                reasons::Place::Status(code) => format!("`{}`", code.name()),
                _ => "–".to_owned(),
            };
            let again = if row.retry { "yes" } else { "no" };
            let _ = writeln!(
                page,
                "| `{}` | {code} | {again} | {} | {} |",
                row.name,
                cell(row.meaning),
                cell(row.remedy)
            );
        }
    }
    page
}

fn limits_page() -> String {
    let mut page = format!(
        "# Limits\n\n{MADE}\n\n`Open` takes limits by name for a session, and `Execute` lower ones for one program. An \
         unknown name is refused (`UNSUPPORTED`), and so is a value outside its range (`LIMIT_OUT_OF_RANGE`). \
         `Server.GetInfo` gives this table for the service that answers.\n\n"
    );
    let _ = writeln!(page, "| name | default | lowest | highest | what it bounds and what happens there |");
    let _ = writeln!(page, "|---|---:|---:|---:|---|");
    for row in limits::TABLE {
        let amount = |value| amount(value, row.unit);
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} |",
            row.name,
            amount(row.default),
            amount(row.min),
            amount(row.max),
            cell(row.description)
        );
    }
    let _ = write!(
        page,
        "\n## Catalogs\n\nA catalog has at most {} tools and {} KiB of names, descriptions and schemas; over that it is \
         refused (`CATALOG_TOO_LARGE`). A tenant keeps at most 20000 catalogs with 2 GiB together; over that a new one \
         is refused (`STORE_FULL`). A catalog is kept while a session is kept that names it, itself or in a program, \
         and as long after it was put last as closed sessions are kept (`retention_days`); then its digest is \
         `CATALOG_NOT_FOUND` until it is put again.\n",
        catalog::TOOLS_MAX,
        catalog::CATALOG_BYTES_MAX / 1024
    );
    page
}

/// A value as people write it.
fn amount(value: u64, unit: limits::Unit) -> String {
    let largest = |steps: &[(u64, &str)], rest: &str| {
        let step = steps.iter().find(|(size, _)| value >= *size && value.is_multiple_of(*size));
        step.map_or(format!("{value}{rest}"), |(size, name)| format!("{} {name}", value / size))
    };
    match unit {
        limits::Unit::Bytes => largest(&[(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")], " B"),
        limits::Unit::Milliseconds => largest(&[(3_600_000, "h"), (60_000, "min"), (1_000, "s")], " ms"),
        limits::Unit::Count => value.to_string(),
    }
}

/// Text that is safe in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::sample;

    #[test]
    fn a_page_that_was_edited_or_is_missing_is_found() {
        let reasons = reasons_page().replace("`INTERNAL`", "`INNER`");
        let files = sample(&[("docs/reasons.md", &reasons)]);
        let places: Vec<_> = check(&files).into_iter().map(|finding| finding.place).collect();
        assert_eq!(places, ["docs/reasons.md", "docs/limits.md"]);
        let fresh = all();
        let fresh = fresh.each_ref().map(|(path, text)| (*path, text.as_str()));
        assert_eq!(check(&sample(&fresh)), []);
    }

    #[test]
    fn every_row_is_on_its_page_once() {
        let page = reasons_page();
        for row in reasons::TABLE {
            assert_eq!(page.matches(&format!("\n| `{}` |", row.name)).count(), 1, "{}", row.name);
        }
        let page = limits_page();
        for row in limits::TABLE {
            assert!(page.contains(&format!("| `{}` |", row.name)), "{}", row.name);
        }
    }

    #[test]
    fn amounts_are_as_people_write_them() {
        use limits::Unit::{Bytes, Count, Milliseconds};
        let cases = [
            (64 * 1024, Bytes, "64 KiB"),
            (8, Bytes, "8 B"),
            (300_000, Milliseconds, "5 min"),
            (86_400_000, Milliseconds, "24 h"),
            (1, Milliseconds, "1 ms"),
            (0, Bytes, "0 B"),
            (1_024, Count, "1024"),
        ];
        for (value, unit, text) in cases {
            assert_eq!(amount(value, unit), text);
        }
    }
}
