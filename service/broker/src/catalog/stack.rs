//! Work that recurses goes where there is stack for it.
//!
//! Validators recurse with the value and with the schema. Values are at most 512 deep and schemas
//! have their own bounds, but threads of a runtime have 2 MiB.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Enough for 512 levels of a value times the most that one level of a schema may nest, in bytes.
/// Only what is used becomes memory.
const DEEP_STACK_BYTES: usize = 128 * 1024 * 1024;
/// Values up to this depth are checked where the caller is.
const SHALLOW_DEPTH_MAX: usize = 24;

/// Runs `work` here, or on a thread with a large stack when `text` nests deep.
pub(super) fn for_depth_of<T: Send>(text: &str, work: impl FnOnce() -> T + Send) -> T {
    if depth(text) <= SHALLOW_DEPTH_MAX {
        return work();
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(DEEP_STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.expect("a process that can't start a thread can't serve");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Maps every item, on up to four threads with large stacks. The order is kept.
pub(super) fn map_in_order<I: Sync, T: Send>(items: &[I], map: impl Fn(&I) -> T + Sync) -> Vec<T> {
    const ITEMS_A_THREAD: usize = 64;
    let n_cores = thread::available_parallelism().map_or(1, NonZero::get);
    let n_threads = items.len().div_ceil(ITEMS_A_THREAD).clamp(1, n_cores.min(4));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(index)
        {
            done.push((index, map(item)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let start = |_| {
            let thread = thread::Builder::new().stack_size(DEEP_STACK_BYTES).spawn_scoped(scope, work);
            thread.expect("a process that can't start a thread can't serve")
        };
        let threads: Vec<_> = (0..n_threads).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<(usize, T)>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, item)| item).collect()
}

/// How deep checked JSON text nests.
pub(super) fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !quoted => depth -= 1,
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_what_is_open_and_not_quoted() {
        for (text, expected) in [("1", 0), ("[]", 1), (r#"{"a[[":["\"[",{}]}"#, 3), ("[[],[[]]]", 3)] {
            assert_eq!(depth(text), expected, "{text}");
        }
    }

    #[test]
    fn the_order_is_kept() {
        let items: Vec<usize> = (0..1000).collect();
        assert_eq!(map_in_order(&items, |n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert!(map_in_order(&[] as &[u8], |n| *n).is_empty());
    }
}
