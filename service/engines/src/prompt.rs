//! What the instructions of all languages share: how programs run, and which tools there are.

use crate::names::Alias;

/// The most that a prompt has of declarations, in bytes: about 16,000 tokens. Past it, it lists names.
const DECLARATIONS_BYTES_MAX: usize = 64 * 1024;
/// The most that a prompt has of names, in bytes.
const NAMES_BYTES_MAX: usize = 64 * 1024;

/// How a session runs programs.
pub(crate) const RUNNING: &str = "\
Running programs
- Every program starts fresh: nothing of earlier programs is left but what they put into `store`.
- exec and wait show what a program does for up to one minute, and return sooner when it ends.
- While the status is `still_working` the program goes on by itself. wait looks at it again; it never \
pauses, resumes or restarts it.
- Use stop when the result is no longer needed. After `completed`, `error` or `terminated` use neither \
wait nor stop.
";

/// What becomes of a program that waits in vain.
pub(crate) fn deadlock(waits: bool) -> &'static str {
    if waits {
        "A program that waits for what can never happen runs until its time is over."
    } else {
        "A program that waits for what can never happen ends with the error `deadlock`."
    }
}

/// How a language's prompt shows tools.
pub(crate) struct Listing<'a> {
    /// The language's name after the fence.
    pub fence: &'a str,
    /// What stands before the declarations.
    pub before: &'a str,
    /// What stands after them.
    pub after: &'a str,
    /// An expression that finds tools by a word.
    pub search: &'a str,
}

impl Listing<'_> {
    /// The tools as far as there is room. The text depends on the catalog alone and begins with what
    /// holds for all catalogs, so that a cache of prompts holds.
    pub(crate) fn text(&self, declarations: &str, aliases: &[Alias]) -> String {
        let Self { fence, before, after, search } = self;
        if !is_over(declarations) {
            return format!("```{fence}\n{before}{declarations}{after}```\n");
        }
        let surface = format!("{}{after}", before.trim_end_matches('\n'));
        let surface = surface.trim_matches('\n');
        let surface = match surface {
            "" => String::new(),
            surface => format!("```{fence}\n{surface}\n```\n\n"),
        };
        format!(
            "{surface}There are {} tools, too many to show how each is called. The `description` of an entry of \
             `ALL_TOOLS` says that. Look for what you need first, in a program of its own if need be: \
             `{search}`. The names:\n\n{}\n",
            aliases.len(),
            names(aliases),
        )
    }
}

/// Whether declarations are more than a prompt shows.
pub(crate) fn is_over(declarations: &str) -> bool {
    declarations.len() > DECLARATIONS_BYTES_MAX
}

/// The names in the catalog's order, as far as there is room.
fn names(aliases: &[Alias]) -> String {
    let mut text = String::new();
    for (n, Alias { alias, .. }) in aliases.iter().enumerate() {
        if text.len() + alias.len() > NAMES_BYTES_MAX {
            return format!("{text}, and {} more in `ALL_TOOLS`", aliases.len() - n);
        }
        text += if n == 0 { "" } else { ", " };
        text += alias;
    }
    text
}
