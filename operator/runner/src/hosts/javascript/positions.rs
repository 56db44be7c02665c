//! Positions: from what the engine runs back to what the author wrote.
//!
//! The author's text gets a frame around it and a few insertions; erasing types then keeps every
//! line and every UTF-16 column. A position goes back through these steps in reverse.

/// A place in the author's source, both from 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// Replaces `removed` bytes at `at` by `text`. Edits do not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub at: usize,
    pub removed: usize,
    pub text: String,
}

/// The author's source and the edits that led to the text that runs.
#[derive(Debug, Default)]
pub struct Positions {
    source: String,
    edited: String,
    edits: Vec<Edit>,
}

impl Positions {
    /// Applies edits, given in any order, to the source; those at one place stay in their order.
    pub fn new(source: &str, mut edits: Vec<Edit>) -> Self {
        edits.sort_by_key(|edit| edit.at);
        let mut edited = String::with_capacity(source.len() + 64);
        let mut copied = 0;
        for edit in &edits {
            edited.push_str(&source[copied..edit.at]);
            edited.push_str(&edit.text);
            copied = edit.at + edit.removed;
        }
        edited.push_str(&source[copied..]);
        Self { source: source.to_owned(), edited, edits }
    }

    /// The text after the edits.
    pub fn edited(&self) -> &str {
        &self.edited
    }

    /// The author's position of an offset in the edited text.
    pub fn of_edited(&self, offset: usize) -> Position {
        self.of_source(self.source_offset(offset))
    }

    /// The author's position of an offset in the source.
    pub fn of_source(&self, offset: usize) -> Position {
        position(&self.source, offset)
    }

    /// The author's position of a line and a byte column, both from 1, in the text that ran. It
    /// differs from the edited text only by blanks, which keep lines and UTF-16 columns.
    pub fn of_run(&self, ran: &str, line: u32, column: u32) -> Position {
        let index = (line.max(1) - 1) as usize;
        let ran_line = ran.split('\n').nth(index).unwrap_or("");
        let bytes = floor_char_boundary(ran_line, (column.max(1) - 1) as usize);
        let utf16 = ran_line[..bytes].encode_utf16().count();
        let mut start = 0;
        for (n, text) in self.edited.split_inclusive('\n').enumerate() {
            if n == index {
                return self.of_edited(start + utf16_to_bytes(text, utf16));
            }
            start += text.len();
        }
        self.of_edited(self.edited.len())
    }

    fn source_offset(&self, offset: usize) -> usize {
        // `moved` is what the edits so far have added, in bytes.
        let mut moved = 0isize;
        for edit in &self.edits {
            let start = edit.at as isize + moved;
            let offset = offset as isize;
            if offset < start {
                break;
            }
            if offset < start + edit.text.len() as isize {
                return edit.at;
            }
            moved += edit.text.len() as isize - edit.removed as isize;
        }
        usize::try_from(offset as isize - moved).unwrap_or(0).min(self.source.len())
    }
}

fn position(text: &str, offset: usize) -> Position {
    let offset = floor_char_boundary(text, offset);
    let before = &text[..offset];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    Position { line: clamp(line), column: clamp(column) }
}

fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn utf16_to_bytes(text: &str, utf16: usize) -> usize {
    let mut seen = 0;
    for (at, character) in text.char_indices() {
        if seen >= utf16 {
            return at;
        }
        seen += character.len_utf16();
    }
    text.trim_end_matches('\n').len()
}

fn floor_char_boundary(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(at: usize, text: &str) -> Edit {
        Edit { at, removed: 0, text: text.to_owned() }
    }

    #[test]
    fn positions_go_back_through_insertions_and_replacements() {
        let source = "ab\ncdef\ngh";
        let edits = vec![insert(0, ">>"), Edit { at: 4, removed: 2, text: "12345".to_owned() }];
        let positions = Positions::new(source, edits);
        assert_eq!(positions.edited(), ">>ab\nc12345f\ngh");
        assert_eq!(positions.of_edited(0), Position { line: 1, column: 1 });
        assert_eq!(positions.of_edited(3), Position { line: 1, column: 2 });
        assert_eq!(positions.of_edited(8), Position { line: 2, column: 2 });
        assert_eq!(positions.of_edited(11), Position { line: 2, column: 4 });
        assert_eq!(positions.of_edited(14), Position { line: 3, column: 2 });
    }

    /// Erased characters of several bytes become one blank a UTF-16 unit.
    #[test]
    fn columns_survive_erased_text_of_several_bytes() {
        let source = "let é: 'ü𝒳' = bad()";
        let ran = "let é:         = bad()".replacen(": ", "  ", 1);
        let positions = Positions::new(source, vec![]);
        let column = ran.find("bad").unwrap() as u32 + 1;
        let wanted = source[..source.find("bad").unwrap()].chars().count() as u32 + 1;
        let found = positions.of_run(&ran, 1, column);
        // One blank stands for each UTF-16 unit, and 𝒳 has two.
        assert!(found.column.abs_diff(wanted) <= 2, "{found:?} {wanted}");
        assert_eq!(found.line, 1);
    }
}
