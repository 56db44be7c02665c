//! The rows of a run, and how they are shown.

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// How a line of the acceptance lists stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It was run and is as it should be.
    Held,
    /// It was run and isn't.
    Failed,
    /// It belongs to a later issue.
    Unbuilt,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Held => "held",
            State::Failed => "failed",
            State::Unbuilt => "unbuilt",
        }
    }
}

/// One line in one language through one door.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// "case 9", "A12".
    pub id: String,
    /// The language.
    pub language: String,
    /// The door.
    pub door: String,
    /// How it stands.
    pub state: State,
    /// Why, where it isn't held.
    pub note: String,
}

/// All rows of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// How many are held.
    pub held: usize,
    /// How many failed.
    pub failed: usize,
    /// How many are unbuilt.
    pub unbuilt: usize,
    /// The rows, in the order of the acceptance lists.
    pub cases: Vec<Row>,
}

impl Report {
    /// Counts the rows.
    pub fn of(cases: Vec<Row>) -> Self {
        let count = |state| cases.iter().filter(|row| row.state == state).count();
        Self { held: count(State::Held), failed: count(State::Failed), unbuilt: count(State::Unbuilt), cases }
    }

    /// The table for people, as wide as `width` where that is known, and the summary.
    pub fn to_table(&self, width: Option<u16>) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width.unwrap_or(120));
        table.set_header(["case", "language", "door", "state", "note"]);
        for row in &self.cases {
            table.add_row([&row.id, &row.language, &row.door, row.state.name(), &row.note]);
        }
        format!("{table}\n{}", self.summary())
    }

    /// One line.
    pub fn summary(&self) -> String {
        format!("{} held, {} failed, {} unbuilt", self.held, self.failed, self.unbuilt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_counts_and_has_the_form_that_others_read() {
        let row = |id: &str, state| Row {
            id: id.to_owned(),
            language: "javascript".to_owned(),
            door: "grpc".to_owned(),
            state,
            note: String::new(),
        };
        let rows = vec![row("case 1", State::Held), row("A1", State::Failed), row("E1", State::Unbuilt)];
        let report = Report::of(rows);
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.starts_with(r#"{"held":1,"failed":1,"unbuilt":1,"cases":[{"id":"case 1","language":"javascript","door":"grpc","state":"held","note":""}"#), "{json}");
        assert!(report.to_table(Some(80)).ends_with("1 held, 1 failed, 1 unbuilt"));
    }
}
