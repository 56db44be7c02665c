//! From the data to rows: which lines there are, in which languages, and in which order.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::case::{self, Case};
use crate::scenarios;

/// The program cases.
const PROGRAM: &[(&str, &str)] = &[
    ("program/order.toml", include_str!("../data/program/order.toml")),
    ("program/values.toml", include_str!("../data/program/values.toml")),
    ("program/names.toml", include_str!("../data/program/names.toml")),
    ("program/errors.toml", include_str!("../data/program/errors.toml")),
    ("program/limits.toml", include_str!("../data/program/limits.toml")),
    ("program/hostile.toml", include_str!("../data/program/hostile.toml")),
    ("program/sources.toml", include_str!("../data/program/sources.toml")),
    ("program/sessions.toml", include_str!("../data/program/sessions.toml")),
];

/// The lines of the session contract.
const CONTRACT: &[(&str, &str)] = &[
    ("contract/a.toml", include_str!("../data/contract/a.toml")),
    ("contract/b_c.toml", include_str!("../data/contract/b_c.toml")),
    ("contract/d.toml", include_str!("../data/contract/d.toml")),
    ("contract/f_g.toml", include_str!("../data/contract/f_g.toml")),
    ("contract/h.toml", include_str!("../data/contract/h.toml")),
    ("contract/i.toml", include_str!("../data/contract/i.toml")),
    ("contract/j.toml", include_str!("../data/contract/j.toml")),
    ("contract/k.toml", include_str!("../data/contract/k.toml")),
    ("contract/m_n.toml", include_str!("../data/contract/m_n.toml")),
    ("contract/o_to_r.toml", include_str!("../data/contract/o_to_r.toml")),
];

const UNBUILT: &str = include_str!("../data/unbuilt.toml");
const ELSEWHERE: &str = include_str!("../data/elsewhere.toml");

/// One row to be made.
#[derive(Debug, Clone)]
pub struct Entry {
    /// "case 9", "A12".
    pub id: String,
    /// The language.
    pub language: String,
    /// What to do for it.
    pub work: Work,
}

/// What to do for a row.
#[derive(Debug, Clone)]
pub enum Work {
    /// Run these blocks; all must hold.
    Run(Vec<Case>),
    /// Nothing: it belongs to a later issue, and this says to which.
    Later(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnbuiltFile {
    /// What is said of a language that isn't built.
    languages: BTreeMap<String, String>,
    lines: Vec<UnbuiltLines>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnbuiltLines {
    ids: Vec<String>,
    languages: Vec<String>,
    note: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ElsewhereFile {
    lines: BTreeMap<String, String>,
}

/// All rows, in the order of the acceptance lists.
pub fn all() -> anyhow::Result<Vec<Entry>> {
    let unbuilt: UnbuiltFile = toml::from_str(UNBUILT).context("reading unbuilt.toml")?;
    let mut rows: BTreeMap<(Order, String), Work> = BTreeMap::new();
    let mut later: BTreeMap<(Order, String), (String, Vec<Case>)> = BTreeMap::new();
    let mut ids: BTreeMap<Order, String> = BTreeMap::new();
    for (name, text) in PROGRAM.iter().chain(CONTRACT) {
        let file = case::parse(name, text)?;
        for case in &file.cases {
            let order = Order::of(&case.id).with_context(|| format!("{name}: {:?} is no id", case.id))?;
            if let Some(scenario) = &case.scenario {
                ensure!(scenarios::find(scenario).is_some(), "{name}: no scenario is named {scenario:?}");
            }
            ids.insert(order, case.id.clone());
            for language in case.languages.as_ref().unwrap_or(&file.languages) {
                let key = (order, language.clone());
                match rows.entry(key).or_insert_with(|| Work::Run(Vec::new())) {
                    Work::Run(blocks) => blocks.push(case.clone()),
                    Work::Later(_) => anyhow::bail!("{name}: {} is both run and later", case.id),
                }
            }
            for language in case.later.as_ref().unwrap_or(&file.later) {
                let note = unbuilt.languages.get(language).context("a language without a note")?;
                later
                    .entry((order, language.clone()))
                    .or_insert_with(|| (note.clone(), vec![]))
                    .1
                    .push(case.clone());
            }
        }
    }
    for ((order, language), (note, blocks)) in later {
        let work = translated(&language, &blocks).map_or(Work::Later(note), Work::Run);
        let before = rows.insert((order, language.clone()), work);
        ensure!(before.is_none(), "{} in {language} is both run and later", ids[&order]);
    }
    for UnbuiltLines { ids: lines, languages, note } in &unbuilt.lines {
        for id in lines {
            let order = Order::of(id).with_context(|| format!("unbuilt.toml: {id:?} is no id"))?;
            ids.insert(order, id.clone());
            for language in languages {
                let before = rows.insert((order, language.clone()), Work::Later(note.clone()));
                ensure!(!matches!(before, Some(Work::Run(_))), "{id} in {language} is both run and unbuilt");
            }
        }
    }
    let entry = |((order, language), work): ((Order, String), Work)| Entry {
        id: ids[&order].clone(),
        language,
        work,
    };
    Ok(rows.into_iter().map(entry).collect())
}

/// The blocks in a language in which all of their programs are given too.
fn translated(language: &str, blocks: &[Case]) -> Option<Vec<Case>> {
    let n_programs = blocks.iter().map(|case| case.n_translated(language)).sum::<Option<usize>>()?;
    (n_programs > 0).then(|| blocks.iter().map(|case| case.translated(language)).collect())
}

/// The lines that the API can't show, with the place where they are tested instead.
pub fn elsewhere() -> anyhow::Result<BTreeMap<String, String>> {
    let file: ElsewhereFile = toml::from_str(ELSEWHERE).context("reading elsewhere.toml")?;
    Ok(file.lines)
}

/// Where a line stands in the lists: program cases first, then the contract's groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    group: char,
    number: u32,
}

impl Order {
    /// Reads "case 9" or "A12".
    pub fn of(id: &str) -> Option<Self> {
        if let Some(number) = id.strip_prefix("case ") {
            return Some(Self { group: ' ', number: number.parse().ok()? });
        }
        let group = id.chars().next().filter(char::is_ascii_uppercase)?;
        Some(Self { group, number: id[1..].parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// How many lines each group of the session contract has.
    const GROUPS: &[(char, u32)] = &[
        ('A', 25),
        ('B', 8),
        ('C', 15),
        ('D', 26),
        ('E', 26),
        ('F', 13),
        ('G', 15),
        ('H', 33),
        ('I', 26),
        ('J', 17),
        ('K', 20),
        ('L', 8),
        ('M', 6),
        ('N', 12),
        ('O', 32),
        ('P', 21),
        ('Q', 6),
        ('R', 17),
        ('S', 24),
    ];
    /// The numbers of the program cases.
    const CASES: &[u32] = &[
        1, 3, 4, 5, 6, 9, 10, 12, 13, 15, 16, 18, 19, 21, 22, 23, 25, 26, 27, 28, 30, 32, 34, 35, 37, 38, 41,
        42, 43, 44, 46, 48, 49, 50, 52, 54, 55, 57, 58, 60, 61, 63, 64, 65, 67, 69, 70, 72, 73, 74, 75, 76,
        77, 78, 80, 81, 82, 84,
    ];

    #[test]
    fn every_line_of_the_lists_is_run_or_said_to_be_elsewhere_or_later() {
        let rows: BTreeSet<String> = all().unwrap().into_iter().map(|entry| entry.id).collect();
        let elsewhere = elsewhere().unwrap();
        let lines =
            GROUPS.iter().flat_map(|(group, n)| (1..=*n).map(move |number| format!("{group}{number}")));
        let wanted: BTreeSet<String> = CASES.iter().map(|n| format!("case {n}")).chain(lines).collect();
        let missing: Vec<_> =
            wanted.iter().filter(|id| !rows.contains(*id) && !elsewhere.contains_key(*id)).collect();
        assert_eq!(missing, Vec::<&String>::new(), "lines that nobody tests");
        let twice: Vec<_> = elsewhere.keys().filter(|id| rows.contains(*id)).collect();
        assert_eq!(twice, Vec::<&String>::new(), "lines that are run and said to be elsewhere");
        let strangers: Vec<_> =
            rows.iter().chain(elsewhere.keys()).filter(|id| !wanted.contains(*id)).collect();
        assert_eq!(strangers, Vec::<&String>::new(), "ids that no list has");
    }

    #[test]
    fn only_what_belongs_to_later_issues_is_unbuilt() {
        let program = ["case 37", "case 73", "case 74", "case 77", "case 78", "case 80"];
        for Entry { id, language, work } in all().unwrap() {
            let later = program.contains(&id.as_str()) || id.starts_with(['E', 'S']);
            let is_later = matches!(work, Work::Later(_));
            let may_be_missing = ["python", "ruby"].contains(&language.as_str());
            assert!(is_later == later || is_later && may_be_missing, "{id} in {language}");
        }
    }

    #[test]
    fn rows_come_in_the_order_of_the_lists() {
        let ids: Vec<Order> = all().unwrap().iter().map(|entry| Order::of(&entry.id).unwrap()).collect();
        assert!(ids.is_sorted());
        assert!(Order::of("case 9") < Order::of("case 10") && Order::of("case 84") < Order::of("A1"));
        assert_eq!(Order::of("Z"), None);
    }
}
