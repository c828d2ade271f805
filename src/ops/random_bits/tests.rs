use candle_core::Device;

use super::random_bits;

fn draw(seed: u64, dims: (usize, usize)) -> Vec<u32> {
    random_bits(seed, dims, &Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The first numbers of the published generator.
#[test]
fn the_sequence_is_splitmix() {
    assert_eq!(draw(0, (1, 3)), [0xe220_a839, 0x6e78_9e6a, 0x06c4_5d18]);
}

#[test]
fn bits_depend_on_seed_and_place_alone() {
    assert_eq!(draw(7, (2, 3)), draw(7, (3, 2)));
    assert_ne!(draw(7, (1, 3)), draw(8, (1, 3)));
    assert!(draw(1, (0, 5)).is_empty());
}

#[test]
fn each_bit_is_set_half_of_the_time() {
    let bits = draw(3, (10, 1000));
    for bit in 0..32 {
        let set = bits.iter().filter(|bits| **bits >> bit & 1 == 1).count();
        // 5000 expected, with a standard deviation of 50.
        assert!((4750..5250).contains(&set), "bit {bit}: {set}");
    }
}
