//! The generator behind all that is random: SplitMix64. Its one home in Rust.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number at a place, counted from 0, of the sequence that starts at `state`.
pub(crate) fn at(state: u64, place: u64) -> u64 {
    mix(advance(state, place.wrapping_add(1)))
}

/// The state so many numbers later.
pub(crate) fn advance(state: u64, numbers: u64) -> u64 {
    state.wrapping_add(numbers.wrapping_mul(STEP))
}

/// Scatters bits, so that neighbours have nothing in common.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
