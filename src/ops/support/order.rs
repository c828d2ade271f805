//! Order of scores: descending, ties by ascending index, NaN last. Its one home in Rust.

/// A key whose ascending order is the order of scores.
pub(crate) fn descending_key(value: f32, index: u32) -> u64 {
    (u64::from(descending_bits(value)) << 32) | u64::from(index)
}

/// The value that a key was made of; the sign of a zero and the bits of a NaN are lost.
pub(crate) fn key_value(key: u64) -> f32 {
    let ascending = !((key >> 32) as u32);
    let bits = if ascending >> 31 == 1 { ascending & 0x7fff_ffff } else { !ascending };
    f32::from_bits(bits)
}

/// Bits that ascend as the value descends; −0 equals +0, every NaN comes last.
fn descending_bits(value: f32) -> u32 {
    if value.is_nan() {
        return u32::MAX;
    }
    let bits = (value + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::{descending_key, key_value};

    #[test]
    fn keys_sort_as_scores_do() {
        let values = [0.5, f32::NAN, -0.0, 0.0, f32::INFINITY, -2.0, 0.5, f32::NEG_INFINITY];
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by_key(|&i| descending_key(values[i as usize], i));
        assert_eq!(order, [4, 0, 6, 2, 3, 5, 7, 1]);
    }
    #[test]
    fn keys_give_back_their_values() {
        for value in [0.5, 0.0, f32::INFINITY, -2.0, f32::NEG_INFINITY, f32::MIN_POSITIVE] {
            assert_eq!(key_value(descending_key(value, 7)), value);
        }
        assert!(key_value(descending_key(f32::NAN, 7)).is_nan());
    }
}
