//! What the instructions of all languages share: how programs run, and which tools there are.

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
}

impl Listing<'_> {
    /// The tools, after what holds for all catalogs, so that a cache of prompts holds.
    pub(crate) fn text(&self, declarations: &str) -> String {
        let Self { fence, before, after } = self;
        format!("```{fence}\n{before}{declarations}{after}```\n")
    }
}
