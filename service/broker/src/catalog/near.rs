//! Names that a program may have meant.

use seance_core::catalog::TOOL_NAME_CHARS_MAX;

/// How many are named.
const SHOWN_MAX: usize = 3;
/// How many edits apart a near name is at most.
const EDITS_MAX: usize = 3;

/// The nearest names, quoted, nearest first and then in their order.
pub(super) fn names<'a>(wanted: &str, known: impl Iterator<Item = &'a String>) -> Vec<String> {
    if wanted.len() > TOOL_NAME_CHARS_MAX {
        return Vec::new();
    }
    let wanted = folded(wanted);
    let edits_max = EDITS_MAX.min(wanted.len() / 2);
    let mut near: Vec<(usize, &String)> =
        known.filter_map(|name| Some((edits(&wanted, &folded(name), edits_max)?, name))).collect();
    near.sort_by_key(|(edits, _)| *edits);
    near.into_iter().take(SHOWN_MAX).map(|(_, name)| format!("{name:?}")).collect()
}

/// Case and the characters between words make no difference.
fn folded(name: &str) -> Vec<char> {
    name.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

/// How many insertions, removals and replacements are between two names, unless more than `max`.
/// Costs the length times `max`.
fn edits(a: &[char], b: &[char], max: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > max {
        return None;
    }
    let far = max + 1;
    let mut row: Vec<usize> = (0..=b.len()).map(|n| n.min(far)).collect();
    for (i, x) in a.iter().enumerate() {
        let (from, to) = ((i + 1).saturating_sub(max).max(1), (i + 1 + max).min(b.len()));
        let mut diagonal = row[from - 1];
        row[from - 1] = if from == 1 { (i + 1).min(far) } else { far };
        for j in from..=to {
            let replaced = diagonal + usize::from(*x != b[j - 1]);
            let above = if j == i + 1 + max { far } else { row[j] };
            diagonal = row[j];
            row[j] = replaced.min(above + 1).min(row[j - 1] + 1).min(far);
        }
    }
    Some(row[b.len()]).filter(|edits| *edits <= max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(wanted: &str, known: &[&str]) -> Vec<String> {
        let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        names(wanted, known.iter())
    }

    /// Case 30.
    #[test]
    fn near_names_come_nearest_first() {
        let known = ["get_user", "get-usr2", "delete_user", "list"];
        assert_eq!(near("get_usr", &known), [r#""get_user""#, r#""get-usr2""#]);
        assert_eq!(near("GetUser", &["get-user"]), [r#""get-user""#]);
        assert!(near("x", &["y", "z"]).is_empty());
        assert!(near(&"x".repeat(1_000_000), &known).is_empty());
    }

    proptest! {
        #[test]
        fn edits_are_those_of_the_whole_table(a in "[ab]{0,8}", b in "[ab]{0,8}", max in 0usize..5) {
            let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
            for i in 0..=a.len() {
                for j in 0..=b.len() {
                    table[i][j] = if i == 0 || j == 0 { i + j } else {
                        let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                        replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
                    };
                }
            }
            let whole = table[a.len()][b.len()];
            prop_assert_eq!(edits(&a, &b, max), Some(whole).filter(|n| *n <= max));
        }
    }
}
