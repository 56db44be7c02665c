//! Erasing types in place: what is erased becomes blanks, so that lines and columns stay.

use std::sync::{Arc, Mutex};

use swc_common::errors::{DiagnosticBuilder, Emitter, HANDLER, Handler};
use swc_common::{SourceMap, sync::Lrc};
use swc_ts_fast_strip::{Mode, Options, operate};

use super::positions::Positions;
use super::source::Rejected;

/// The edited text without its types.
pub fn erase(positions: &Positions) -> Result<String, Rejected> {
    let first = Arc::new(Mutex::new(None));
    let handler = Handler::with_emitter(true, false, Box::new(FirstError(Arc::clone(&first))));
    let map: Lrc<SourceMap> = Lrc::default();
    let options = Options { module: Some(false), mode: Mode::StripOnly, ..Options::default() };
    let erased = HANDLER.set(&handler, || operate(&map, &handler, positions.edited().to_owned(), options));
    erased.map(|output| output.code).map_err(|error| {
        let found = first.lock().ok().and_then(|mut found| found.take());
        let (message, offset) = found.unwrap_or((error.message, 0));
        Rejected { code: "syntax_error", message, position: positions.of_edited(offset) }
    })
}

/// Keeps the first error and its offset; the eraser reports to a handler only.
struct FirstError(Arc<Mutex<Option<(String, usize)>>>);

impl Emitter for FirstError {
    fn emit(&mut self, diagnostic: &mut DiagnosticBuilder<'_>) {
        let offset = diagnostic.span.primary_span().map_or(0, |span| span.lo.0.saturating_sub(1) as usize);
        let message = format!("TypeScript: {}", diagnostic.message());
        if let Ok(mut first) = self.0.lock() {
            first.get_or_insert((message, offset));
        }
    }
}
