//! Cuts a value to a budget so that what is left is still a value.
//!
//! What fits stays as it is written. An array loses its tail and says how many items are missing in
//! a last string; an object likewise under the key "…"; a string loses its middle. What is kept
//! shares the budget: small parts stay whole, large ones are cut themselves.

use std::ops::Range;

use super::scan::{Scanner, Token, Unit, unit};
use super::tree::ANY;
use super::{JsonText, Kind};
use crate::text::parse_count;

/// The smallest budget that [`cut`] keeps to, in bytes.
pub const CUT_BYTES_MIN: usize = 64;
/// How deep a cut goes; what is over its share below is left out as a whole.
const CUT_DEPTH_MAX: usize = 64;
/// Part of a budget that one item may claim before later items are dropped: one in so many.
const ITEM_SHARE: usize = 8;

/// A value that was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// What is left, valid JSON within the budget.
    pub json: String,
    /// The length of the whole, in bytes.
    pub original_bytes: usize,
}

/// Cuts `text` to at most `max_bytes` bytes, but no budget is smaller than [`CUT_BYTES_MIN`]; none
/// when it fits as it is. The same text and budget give the same result, and cutting that again
/// changes nothing. A smaller budget adds to the counts of an earlier cut and never counts its
/// markers (case 69).
pub fn cut(text: &JsonText, max_bytes: usize) -> Option<Cut> {
    let (text, budget) = (text.as_str(), max_bytes.max(CUT_BYTES_MIN));
    if text.len() <= budget {
        return None;
    }
    let cutter = Cutter { text, nodes: nodes(text) };
    let mut json = String::with_capacity(budget);
    cutter.write(0, budget, 0, &mut json);
    Some(Cut { json, original_bytes: text.len() })
}

/// A value in the text. All values stand in the order of the text, each before what is in it.
struct Node {
    /// Where its text begins; that of its key when it has one.
    key: u32,
    start: u32,
    end: u32,
    /// The next value that is not inside this one.
    next: u32,
}

/// Finds all values of a checked text.
fn nodes(text: &str) -> Vec<Node> {
    let checked = "the text was checked";
    let mut scanner = Scanner::new(text, &ANY).expect(checked);
    let (mut nodes, mut open): (Vec<Node>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut key = None;
    while let Some((token, Range { start, end })) = scanner.next().expect(checked) {
        let (start, end) = (start as u32, end as u32);
        match token {
            Token::Key => key = Some(start),
            Token::Begin(_) => {
                open.push(nodes.len());
                nodes.push(Node { key: key.take().unwrap_or(start), start, end, next: 0 });
            }
            Token::End => {
                let (node, next) = (open.pop().expect(checked), nodes.len() as u32);
                (nodes[node].end, nodes[node].next) = (end, next);
            }
            Token::Scalar(_) => {
                let next = nodes.len() as u32 + 1;
                nodes.push(Node { key: key.take().unwrap_or(start), start, end, next });
            }
        }
    }
    nodes
}

struct Cutter<'a> {
    text: &'a str,
    nodes: Vec<Node>,
}

/// An item of an array or object, as it will stand in the result.
struct Item<'a> {
    node: usize,
    /// The key with its colon; empty in an array.
    key: &'a str,
    text: &'a str,
}

impl Item<'_> {
    /// The bytes of the comma or bracket before it, its key and colon.
    fn overhead(&self) -> usize {
        if self.key.is_empty() { 1 } else { self.key.len() + 2 }
    }

    /// The least it takes in a budget: all of it, or a share worth reading.
    fn claim(&self, budget: usize) -> usize {
        self.overhead() + self.text.len().min((budget / ITEM_SHARE).max(CUT_BYTES_MIN))
    }
}

impl<'a> Cutter<'a> {
    fn text_of(&self, node: usize) -> &'a str {
        &self.text[self.nodes[node].start as usize..self.nodes[node].end as usize]
    }

    /// Writes a value in at most `budget` bytes, which are [`CUT_BYTES_MIN`] or more.
    fn write(&self, node: usize, budget: usize, depth: usize, out: &mut String) {
        let text = self.text_of(node);
        match Kind::of(text.as_bytes()[0]) {
            _ if text.len() <= budget => out.push_str(text),
            Kind::Array | Kind::Object => self.write_items(node, budget, depth, out),
            Kind::String => write_string(&text[1..text.len() - 1], budget, out),
            Kind::Number | Kind::Bool | Kind::Null => write_string(text, budget, out),
        }
    }

    fn write_items(&self, node: usize, budget: usize, depth: usize, out: &mut String) {
        let items = self.items(node);
        let is_object = self.text_of(node).starts_with('{');
        let n_kept = if depth < CUT_DEPTH_MAX { n_kept(&items, is_object, budget) } else { 0 };
        let marker = marker(&items[n_kept..], is_object);
        let overhead: usize = items[..n_kept].iter().map(Item::overhead).sum();
        // One bracket is counted as the comma before the first item or the marker.
        let room = budget - 1 - overhead - marker.as_ref().map_or(0, |m| m.len() + 1);
        let share = share(items[..n_kept].iter().map(|item| item.text.len()).collect(), room);
        let mut separator = if is_object { '{' } else { '[' };
        for item in &items[..n_kept] {
            out.push(std::mem::replace(&mut separator, ','));
            out.push_str(item.key);
            if is_object {
                out.push(':');
            }
            self.write(item.node, share.max(CUT_BYTES_MIN), depth + 1, out);
        }
        if let Some(marker) = marker {
            out.push(separator);
            out.push_str(&marker);
        }
        out.push(if is_object { '}' } else { ']' });
    }

    fn items(&self, node: usize) -> Vec<Item<'a>> {
        let (mut at, end) = (node + 1, self.nodes[node].next as usize);
        let mut items = Vec::new();
        while at < end {
            let (key, start) = (self.nodes[at].key as usize, self.nodes[at].start as usize);
            let key = self.text[key..start].trim_end_matches([':', ' ', '\t', '\n', '\r']);
            items.push(Item { node: at, key, text: self.text_of(at) });
            at = self.nodes[at].next as usize;
        }
        items
    }
}

/// How many items from the first on are kept.
fn n_kept(items: &[Item<'_>], is_object: bool, budget: usize) -> usize {
    let longest_marker = if is_object {
        r#","…":"18446744073709551615 keys truncated""#
    } else {
        r#","…18446744073709551615 items truncated…""#
    };
    let (mut used, mut n_kept) = (1, 0);
    for (n, item) in items.iter().enumerate() {
        if used + longest_marker.len() <= budget {
            n_kept = n;
        }
        used += item.claim(budget);
        if used > budget {
            return n_kept;
        }
    }
    items.len()
}

/// Says what is missing; none when nothing is.
fn marker(missing: &[Item<'_>], is_object: bool) -> Option<String> {
    let (last, before) = missing.split_last()?;
    let earlier = if is_object {
        last.text
            .strip_prefix('"')
            .filter(|_| last.key == r#""…""#)
            .and_then(|t| t.strip_suffix(r#" keys truncated""#))
    } else {
        last.text.strip_prefix(r#""…"#).and_then(|t| t.strip_suffix(r#" items truncated…""#))
    };
    let n = (before.len() as u64).saturating_add(earlier.and_then(parse_count).unwrap_or(1));
    Some(if is_object {
        format!(r#""…":"{n} keys truncated""#)
    } else {
        format!(r#""…{n} items truncated…""#)
    })
}

/// The largest share that each may have so that all fit in `room`; who needs less leaves the rest
/// to the others.
fn share(mut needs: Vec<usize>, mut room: usize) -> usize {
    needs.sort_unstable();
    for (n, need) in needs.iter().enumerate() {
        let share = room / (needs.len() - n);
        if *need > share {
            return share;
        }
        room -= need;
    }
    usize::MAX
}

/// Writes the inside of a string in quotes, without its middle.
fn write_string(inside: &str, budget: usize, out: &mut String) {
    let room = budget - r#""…18446744073709551615 characters truncated…""#.len();
    let (head_max, tail_min) = (room.div_ceil(2), inside.len() - room / 2);
    let (mut at, mut head, mut n_before_tail, mut n_head) = (0, 0, 0, 0);
    while at < tail_min {
        if at <= head_max {
            (head, n_head) = (at, n_before_tail);
        }
        let Unit::Whole(n_bytes) = unit(&inside.as_bytes()[at..]) else {
            unreachable!("the text was checked")
        };
        (at, n_before_tail) = (at + n_bytes, n_before_tail + 1);
    }
    let n = n_missing(&inside[head..at], n_before_tail - n_head);
    *out += &format!("\"{}…{n} characters truncated…{}\"", &inside[..head], &inside[at..]);
}

/// How many characters are missing where `gap` of `n` characters is, which may hold the marker of an
/// earlier cut.
fn n_missing(gap: &str, n: u64) -> u64 {
    let earlier = gap.split_once(" characters truncated…").and_then(|(before, _)| {
        let count = &before[before.rfind('…')? + '…'.len_utf8()..];
        Some((parse_count(count)?, "… characters truncated…".chars().count() + count.len()))
    });
    earlier.map_or(n, |(count, marker)| (n - marker as u64).saturating_add(count))
}
