//! What the targets have in common: tests that give hostile bytes to what reads them. `cargo test` runs each over its
//! kept corpus (`tests/__fuzz__`), mutations of that, and random bytes; `cargo bolero test` runs the same targets under
//! a fuzzer for as long as one likes, and what it finds is kept there.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// Mutations of one input.
const MUTATIONS: u64 = 60;
/// What is put into texts: the signs of JSON, and edges of numbers and lengths.
const PIECES: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"\\",
    b"\\ud800",
    b"\\u0000",
    b"null",
    b"true",
    b"-",
    b"0",
    b"1e999",
    b"99999999999999999999999999",
    b"$ref",
    b"#",
    b"\0",
    b"\0\0\0\0",
    b"\0\0\0\x01",
    b"\xff\xff\xff\xff",
    b"\x80",
    b"\xc3\xa4",
];

/// The input and mutations of it, always the same: pieces cut out, doubled or put in, bits turned.
pub fn mutations(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let mutated = (0..if bytes.is_empty() { 0 } else { MUTATIONS }).map(move |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = bytes.to_vec();
        for _ in 0..random.random_range(1..4) {
            mutate(&mut bytes, &mut random);
        }
        bytes
    });
    std::iter::once(bytes.to_vec()).chain(mutated)
}

/// Those of them that are text.
pub fn texts(bytes: &[u8]) -> impl Iterator<Item = String> + '_ {
    mutations(bytes).filter_map(|bytes| String::from_utf8(bytes).ok())
}

fn mutate(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let from = random.random_range(0..=bytes.len());
    let to = random.random_range(from..=bytes.len().min(from + 32));
    match random.random_range(0..4) {
        0 => drop(bytes.drain(from..to)),
        1 => {
            let doubled = bytes[from..to].to_vec();
            bytes.splice(to..to, doubled);
        }
        2 => drop(bytes.splice(from..from, PIECES[random.random_range(0..PIECES.len())].iter().copied())),
        _ => {
            if let Some(byte) = bytes.get_mut(from) {
                *byte ^= 1 << random.random_range(0..8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_many_and_always_the_same() {
        let all: Vec<_> = mutations(b"{\"a\":[1,2,3]}").collect();
        assert_eq!(all, mutations(b"{\"a\":[1,2,3]}").collect::<Vec<_>>());
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert!(distinct.len() > 50, "{}", distinct.len());
        assert_eq!(mutations(b"").count(), 1);
    }
}
