//! Text budgets and decoding: tokens, cuts in the middle, and UTF-8 that arrives in pieces.
//!
//! Cut text carries a marker where something is missing. The marker is for the reader; what a
//! caller decides on are the counts beside the text.

use std::borrow::Cow;

/// The bytes that count as one token (M1).
pub const BYTES_PER_TOKEN: u64 = 4;

/// What `bytes` bytes of text count as, in tokens: four bytes each, rounded up (M1).
pub fn tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(BYTES_PER_TOKEN)
}

/// Text that was held to a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// The text; longer than its budget by the marker when it was cut.
    pub text: String,
    /// What the whole text counts as.
    pub original_tokens: u64,
    /// How many tokens are missing; 0 when nothing was cut.
    pub cut_tokens: u64,
}

impl Truncated {
    /// Whether something is missing.
    pub fn is_cut(&self) -> bool {
        self.cut_tokens > 0
    }
}

/// Removes the middle of `text` where it is over `max_tokens`, on character boundaries (M2 to M4,
/// M6). The marker comes on top of the budget and says how many tokens went.
///
/// Text that is already the result of a cut to the same budget comes back as it is, with the
/// counts of that cut, so cutting twice changes nothing (case 69). A program can print such text
/// itself; it then misstates only the length of its own output, never past the budget.
pub fn truncate_middle(text: &str, max_tokens: u64) -> Truncated {
    let max_bytes = max_tokens.saturating_mul(BYTES_PER_TOKEN);
    let original_tokens = tokens(text.len());
    if text.len() as u64 <= max_bytes {
        return Truncated { text: text.to_owned(), original_tokens, cut_tokens: 0 };
    }
    let max_bytes = usize::try_from(max_bytes).expect("it is below the length of a text");
    if let Some(cut_tokens) = cut_before(text, max_bytes) {
        let original_tokens = cut_tokens.saturating_add(max_tokens);
        return Truncated { text: text.to_owned(), original_tokens, cut_tokens };
    }
    let cut_tokens = tokens(text.len() - max_bytes);
    let (head, tail) = ends(text, max_bytes / 2, max_bytes - max_bytes / 2);
    let text = format!("{head}…{cut_tokens} tokens truncated…{tail}");
    Truncated { text, original_tokens, cut_tokens }
}

/// [`truncate_middle`] of a text of `bytes` bytes of which only the beginning and the end are left,
/// each a character longer than the budget at least.
pub fn truncate_ends(head: &str, tail: &str, bytes: u64, max_tokens: u64) -> Truncated {
    let max_bytes = usize::try_from(max_tokens.saturating_mul(BYTES_PER_TOKEN)).unwrap_or(usize::MAX);
    let cut_tokens = bytes.saturating_sub(max_bytes as u64).div_ceil(BYTES_PER_TOKEN);
    let (head, tail) = (ends(head, max_bytes / 2, 0).0, ends(tail, 0, max_bytes - max_bytes / 2).1);
    let text = format!("{head}…{cut_tokens} tokens truncated…{tail}");
    Truncated { text, original_tokens: bytes.div_ceil(BYTES_PER_TOKEN), cut_tokens }
}

/// Removes the middle of `text` so that the result, marker included, has at most `max_bytes`
/// bytes. Where not even the marker fits, the beginning is kept. Cutting twice changes nothing.
pub fn truncate_bytes(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    // The count in the marker is at most the length of the text, so this has room for its digits.
    let room = format!("…{} bytes truncated…", text.len()).len();
    let Some(kept) = max_bytes.checked_sub(room) else {
        return Cow::Borrowed(ends(text, max_bytes, 0).0);
    };
    let (head, tail) = ends(text, kept.div_ceil(2), kept / 2);
    let cut = text.len() - head.len() - tail.len();
    Cow::Owned(format!("{head}…{cut} bytes truncated…{tail}"))
}

/// `bytes` as text, each invalid part as U+FFFD (M5).
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Decodes UTF-8 that comes in pieces cut anywhere (sandbox 34). What it gives in all equals
/// [`lossy`] of all the bytes. It holds back at most three bytes.
#[derive(Debug, Clone, Default)]
pub struct Utf8Carry {
    held: Vec<u8>,
}

impl Utf8Carry {
    /// Takes the next piece; gives all text that is complete by now.
    pub fn push(&mut self, piece: &[u8]) -> String {
        self.held.extend_from_slice(piece);
        let n_complete = self.held.len() - incomplete_tail(&self.held);
        let text = lossy(&self.held[..n_complete]);
        self.held.drain(..n_complete);
        text
    }

    /// The end of the bytes: a character that was begun and never ended is U+FFFD.
    pub fn finish(self) -> String {
        lossy(&self.held)
    }
}

/// How many bytes of `bytes` make a piece of at most `max_bytes`, 4 at least, that splits no character (M5):
/// an observation may end behind any piece.
pub fn piece_bytes(bytes: &[u8], max_bytes: usize) -> usize {
    if bytes.len() <= max_bytes {
        return bytes.len();
    }
    max_bytes - incomplete_tail(&bytes[..max_bytes])
}

/// How many bytes at the end begin a character that more bytes could complete.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    let starts = (from..bytes.len()).rev();
    let Some(start) = starts.into_iter().find(|&n| bytes[n] & 0xc0 != 0x80) else { return 0 };
    match std::str::from_utf8(&bytes[start..]) {
        Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => bytes.len() - start,
        _ => 0,
    }
}

/// The longest beginning and end of `text` within these numbers of bytes, in whole characters.
fn ends(text: &str, head_bytes: usize, tail_bytes: usize) -> (&str, &str) {
    let head = text.floor_char_boundary(head_bytes);
    let tail = text.ceil_char_boundary(text.len().saturating_sub(tail_bytes));
    (&text[..head], &text[tail..])
}

/// The count in the marker of `text`, if a cut to `max_bytes` made it. A cut leaves both ends at
/// most three bytes short of their share, so there are four places to look at.
fn cut_before(text: &str, max_bytes: usize) -> Option<u64> {
    let (head_share, tail_share) = (max_bytes / 2, max_bytes - max_bytes / 2);
    let heads = head_share.saturating_sub(3)..=head_share;
    heads.into_iter().find_map(|head| {
        let (count, tail) = text.get(head..)?.strip_prefix('…')?.split_once(" tokens truncated…")?;
        let is_ours = tail.len() <= tail_share && tail.len() + 3 >= tail_share;
        parse_count(count).filter(|_| is_ours)
    })
}

/// A count as a marker writes it: 1 or more, no sign, no leading zero.
pub(crate) fn parse_count(text: &str) -> Option<u64> {
    let is_plain = text.starts_with(|c: char| ('1'..='9').contains(&c)) && text.len() <= 20;
    if is_plain && text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(text: &str, max_tokens: u64) -> (String, u64, u64) {
        let Truncated { text, original_tokens, cut_tokens } = truncate_middle(text, max_tokens);
        (text, original_tokens, cut_tokens)
    }

    /// M1.
    #[test]
    fn a_token_is_four_bytes_rounded_up() {
        for (text, expected) in [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("🙂", 1)] {
            assert_eq!(tokens(text.len()), expected, "{text:?}");
        }
    }

    /// M5: bytes that are no text are cut anywhere.
    #[test]
    fn a_piece_ends_between_characters() {
        for (bytes, max_bytes, expected) in [
            ("abcd".as_bytes(), 4, 4),
            ("abcde".as_bytes(), 4, 4),
            ("abcé".as_bytes(), 4, 3),
            ("a🙂".as_bytes(), 4, 1),
            ("🙂🙂".as_bytes(), 4, 4),
            (&[0x80; 9], 4, 4),
        ] {
            assert_eq!(piece_bytes(bytes, max_bytes), expected, "{bytes:?}");
        }
    }

    /// M2, M3, M4, M6.
    #[test]
    fn the_middle_goes_and_the_marker_says_how_much() {
        for (text, budget, expected) in [
            ("", 0, ("", 0, 0)),
            ("abcd", 1, ("abcd", 1, 0)),
            ("abcdefghij", 1, ("ab…2 tokens truncated…ij", 3, 2)),
            ("abcdefghij", 0, ("…3 tokens truncated…", 3, 3)),
            ("🙂🙂🙂", 2, ("🙂…1 tokens truncated…🙂", 3, 1)),
            ("€€€", 1, ("…2 tokens truncated…", 3, 2)),
            ("abc", u64::MAX, ("abc", 1, 0)),
        ] {
            let (text, original, cut) = cut(text, budget);
            assert_eq!((text.as_str(), original, cut), expected);
        }
    }

    #[test]
    fn an_error_is_cut_to_its_bytes_marker_included() {
        assert_eq!(truncate_bytes("short", 5), "short");
        let long = "é".repeat(200);
        let cut = truncate_bytes(&long, 64);
        assert_eq!(cut, format!("{}…362 bytes truncated…{}", "é".repeat(10), "é".repeat(9)));
        assert_eq!(truncate_bytes(&long, 9), "éééé", "no room for a marker");
    }

    /// Sandbox 34: emoji, CJK and invalid bytes in pieces of 1 to 7 bytes.
    #[test]
    fn characters_cut_at_the_edge_of_a_piece_stay_whole() {
        let bytes = [
            "a🙂漢字é".as_bytes(),
            b"\xff\xf0\x9f",
            "漢".as_bytes(),
            b"\xe6\xbc\xc3\x28\x80\x80\x80\x80\xed\xa0\x80",
            "👩‍👩‍👧".as_bytes(),
            b"\xf0\x9f\x99",
        ]
        .concat();
        for size in 1..=7 {
            let mut carry = Utf8Carry::default();
            let mut text: String = bytes.chunks(size).map(|piece| carry.push(piece)).collect();
            text += &carry.finish();
            assert_eq!(text, lossy(&bytes), "pieces of {size}");
        }
    }

    proptest! {
        /// Case 69: cutting twice never changes the counts.
        #[test]
        fn cutting_twice_is_cutting_once(text in "[a-z€🙂…]{0,400}", budget in 0u64..40) {
            let once = truncate_middle(&text, budget);
            prop_assert_eq!(truncate_middle(&once.text, budget), once);
        }

        #[test]
        fn a_cut_to_bytes_fits_and_is_stable(text in "[a-z€🙂…]{0,400}", max in 0usize..300) {
            let once = truncate_bytes(&text, max).into_owned();
            prop_assert!(once.len() <= max);
            prop_assert_eq!(truncate_bytes(&once, max), once.as_str());
        }

        #[test]
        fn pieces_decode_as_the_whole(bytes: Vec<u8>, at in prop::collection::vec(1usize..6, 0..40)) {
            let (mut carry, mut text, mut rest) = (Utf8Carry::default(), String::new(), &bytes[..]);
            for size in at {
                let (piece, later) = rest.split_at(size.min(rest.len()));
                text += &carry.push(piece);
                prop_assert!(carry.held.len() <= 3);
                rest = later;
            }
            text += &carry.push(rest);
            text += &carry.finish();
            prop_assert_eq!(text, lossy(&bytes));
        }
    }
}
