use candle_core::Device;

use super::{AnchorGridParams, AnchorLevel, anchor_grid};
use crate::ops::support::testing::{assert_close, fixture, values};

fn level(height: usize, width: usize, stride: (usize, usize), sizes: &[f32]) -> AnchorLevel {
    AnchorLevel {
        height,
        width,
        stride_y: stride.0,
        stride_x: stride.1,
        sizes: sizes.to_vec(),
        aspect_ratios: Vec::new(),
    }
}

fn generate(levels: Vec<AnchorLevel>, ratios: &[f32]) -> Vec<Vec<f32>> {
    let levels = levels
        .into_iter()
        .map(|level| AnchorLevel { aspect_ratios: ratios.to_vec(), ..level })
        .collect();
    anchor_grid(&AnchorGridParams { levels }, &Device::Cpu).unwrap().to_vec2().unwrap()
}

#[test]
fn each_level_has_its_own_sizes_times_the_ratios() {
    let sizes = [32.0, 64.0, 128.0, 256.0, 512.0];
    let levels = sizes.map(|size| level(1, 1, (8, 8), &[size])).to_vec();
    let anchors = generate(levels, &[0.5, 1.0, 2.0]);
    assert_eq!(anchors.len(), 15);
    assert_eq!(anchors[0], [-23.0, -11.0, 23.0, 11.0]);
    assert_eq!(anchors[1], [-16.0, -16.0, 16.0, 16.0]);
    assert_eq!(anchors[2], [-11.0, -23.0, 11.0, 23.0]);
}

#[test]
fn ratios_are_the_outer_loop_and_sizes_the_inner() {
    let anchors = generate(vec![level(1, 1, (1, 1), &[32.0, 64.0])], &[1.0, 2.0]);
    let widths: Vec<f32> = anchors.iter().map(|b| b[2] - b[0]).collect();
    assert_eq!(widths, [32.0, 64.0, 22.0, 46.0]);
}

#[test]
fn levels_may_differ_in_their_ratios() {
    let of = |ratios: &[f32]| AnchorLevel {
        aspect_ratios: ratios.to_vec(),
        ..level(1, 1, (1, 1), &[32.0])
    };
    let params = AnchorGridParams { levels: vec![of(&[1.0]), of(&[2.0, 0.5])] };
    let anchors: Vec<Vec<f32>> = anchor_grid(&params, &Device::Cpu).unwrap().to_vec2().unwrap();
    let widths: Vec<f32> = anchors.iter().map(|b| b[2] - b[0]).collect();
    assert_eq!(widths, [32.0, 22.0, 46.0]);
}

#[test]
fn anchors_start_at_the_corner_without_an_offset() {
    let anchors = generate(vec![level(2, 3, (10, 13), &[32.0])], &[1.0]);
    let lefts: Vec<f32> = anchors.iter().take(3).map(|b| b[0]).collect();
    assert_eq!(lefts, [-16.0, -3.0, 10.0]);
    assert_eq!(anchors[3][1], -6.0);
}

#[test]
fn an_empty_level_has_no_anchor() {
    assert!(generate(vec![level(0, 3, (8, 8), &[32.0])], &[1.0]).is_empty());
}

#[test]
fn equals_the_reference() {
    let tensors = fixture("ops.safetensors");
    for case in ["one_level", "two_sizes", "default"] {
        let get = |what: &str| values(&tensors[&format!("anchors/{case}/{what}")]);
        let padded = get("padded");
        let (feature_sizes, sizes) = (get("feature_sizes"), get("sizes"));
        let levels = feature_sizes.len() / 2;
        let levels = (0..levels)
            .map(|l| {
                let (height, width) =
                    (feature_sizes[2 * l] as usize, feature_sizes[2 * l + 1] as usize);
                let stride = (padded[0] as usize / height, padded[1] as usize / width);
                let sizes = &sizes[l * sizes.len() / levels..(l + 1) * sizes.len() / levels];
                let aspect_ratios = get("aspect_ratios");
                AnchorLevel { aspect_ratios, ..level(height, width, stride, sizes) }
            })
            .collect();
        let params = AnchorGridParams { levels };
        let found = anchor_grid(&params, &Device::Cpu).unwrap();
        assert_close(&found, &tensors[&format!("anchors/{case}/anchors")], 0.0);
    }
}
