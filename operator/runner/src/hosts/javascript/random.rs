//! `Math.random` with a seed of its own for each program.
//!
//! The interpreter seeds its generator when it starts, and every host is forked from one that has.

use std::cell::Cell;

use rquickjs::object::Property;
use rquickjs::{Ctx, Function, Object, Result};

use crate::hosts::exit_now;

/// Puts `Math.random` in the place of the interpreter's.
pub fn install(ctx: &Ctx<'_>) -> Result<()> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).unwrap_or_else(|_| exit_now(1));
    let state = Cell::new(u64::from_le_bytes(seed));
    let random = move || {
        let (next, number) = split_mix(state.get());
        state.set(next);
        // The 53 bits that a number has, as a fraction of 1.
        (number >> 11) as f64 / (1u64 << 53) as f64
    };
    let random = Function::new(ctx.clone(), random)?.with_name("random")?;
    let math: Object<'_> = ctx.globals().get("Math")?;
    math.prop("random", Property::from(random).writable().configurable())
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): the next
/// state and its number.
fn split_mix(state: u64) -> (u64, u64) {
    let next = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (next, mixed ^ (mixed >> 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference() {
        // The first numbers of the seed 1234567, as the reference implementation prints them.
        let wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        let mut state = 1_234_567;
        for number in wanted {
            let (next, got) = split_mix(state);
            assert_eq!(got, number);
            state = next;
        }
    }
}
