//! Heads with norms that are trained, on slots of which some are empty.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarBuilder;

use super::{BoxHead, MaskHead};
use crate::config::ModelConfig;
use crate::ops::FilledRows;
use crate::ops::support::testing::{Random, assert_close_relative};

const SLOTS: usize = 4;
const COUNTS: [u32; 3] = [3, 0, 2];
/// Rows of filled slots.
const FILLED: [u32; 5] = [0, 1, 2, 8, 9];
/// Of sums that are split into other blocks.
const TOLERANCE: f32 = 1e-5;

fn config() -> ModelConfig {
    let origin = "tests/fixtures/tiny_r50_v2.toml";
    ModelConfig::parse(include_str!("../../../tests/fixtures/tiny_r50_v2.toml"), origin).unwrap()
}

fn variables(random: &mut Random, shapes: &[(String, Vec<usize>)]) -> HashMap<String, Tensor> {
    let variable = |(name, dims): &(String, Vec<usize>)| {
        // Variances are positive.
        let tensor = random.tensor(dims).affine(0.5, 0.1).unwrap().abs().unwrap();
        let tensor = if name.contains("running_var") { tensor } else { random.tensor(dims) };
        (name.clone(), Var::from_tensor(&tensor).unwrap().into_inner())
    };
    shapes.iter().map(variable).collect()
}

/// A convolution and its norm.
fn normed_conv(prefix: &str, inputs: usize, outputs: usize) -> Vec<(String, Vec<usize>)> {
    let norm = ["weight", "bias", "running_mean", "running_var"];
    let norm = norm.map(|name| (format!("{prefix}.1.{name}"), vec![outputs]));
    let conv = (format!("{prefix}.0.weight"), vec![outputs, inputs, 3, 3]);
    std::iter::once(conv).chain(norm).collect()
}

fn rows(tensor: &Tensor) -> Tensor {
    let filled = Tensor::new(&FILLED, &Device::Cpu).unwrap();
    tensor.index_select(&filled, 0).unwrap()
}

/// What a pass through a head leaves behind.
struct Pass {
    output: Tensor,
    gradients: HashMap<String, Option<Tensor>>,
    of_pooled: Tensor,
    /// After it, running statistics included.
    variables: HashMap<String, Tensor>,
}

/// Runs a head on variables of its own; the loss is a weighted sum of the output of filled slots.
fn pass(
    shapes: &[(String, Vec<usize>)],
    pooled: &Tensor,
    forward: impl Fn(&VarBuilder, &Tensor) -> Tensor,
    filled: impl Fn(&Tensor) -> Tensor,
) -> Pass {
    let variables = variables(&mut Random::new(3), shapes);
    let builder = VarBuilder::from_tensors(variables.clone(), DType::F32, &Device::Cpu);
    let pooled = Var::from_tensor(pooled).unwrap();
    let output = filled(&forward(&builder, pooled.as_tensor()));
    let weights = Random::new(5).tensor(output.dims());
    let loss = (&output * weights).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    let of_pooled = filled(gradients.get(&pooled).unwrap());
    let of =
        |(name, variable): (&String, &Tensor)| (name.clone(), gradients.get(variable).cloned());
    let gradients = variables.iter().map(of).collect();
    Pass { output: output.detach(), gradients, of_pooled, variables }
}

/// The head gives the same for filled slots among empty ones as for filled slots alone, and learns the same.
fn compare(
    shapes: &[(String, Vec<usize>)],
    [side, channels]: [usize; 2],
    forward: impl Fn(&VarBuilder, &Tensor, FilledRows) -> Tensor,
) {
    let counts = Tensor::new(&COUNTS, &Device::Cpu).unwrap();
    let dims = [COUNTS.len() * SLOTS, side, side, channels];
    let pooled = with_empty_slots(&Random::new(7).tensor(&dims));
    let among = pass(shapes, &pooled, |w, p| forward(w, p, FilledRows::UpTo(&counts)), rows);
    let alone = pass(shapes, &rows(&pooled), |w, p| forward(w, p, FilledRows::All), Tensor::clone);
    assert_close_relative(&among.output, &alone.output, TOLERANCE);
    assert_close_relative(&among.of_pooled, &alone.of_pooled, 10.0 * TOLERANCE);
    let first = variables(&mut Random::new(3), shapes);
    for (name, expected) in &alone.variables {
        assert_close_relative(&among.variables[name], expected, TOLERANCE);
        match (&among.gradients[name], &alone.gradients[name]) {
            (Some(found), Some(expected)) => {
                assert_close_relative(found, expected, 10.0 * TOLERANCE);
            }
            (found, expected) => {
                assert!(found.is_none() && expected.is_none(), "{name}");
                let moved = largest_difference(&first[name], &alone.variables[name]) > 1e-4;
                assert!(name.contains("running") && moved, "{name}");
            }
        }
    }
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
    (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
}

/// Zeros in empty slots, as pooling leaves them.
fn with_empty_slots(pooled: &Tensor) -> Tensor {
    let mut kept = vec![0f32; pooled.dims()[0]];
    FILLED.iter().for_each(|row| kept[*row as usize] = 1.0);
    let kept = Tensor::from_vec(kept, (pooled.dims()[0], 1, 1, 1), &Device::Cpu).unwrap();
    pooled.broadcast_mul(&kept).unwrap()
}

#[test]
fn box_heads_learn_from_filled_slots() {
    let config = config();
    let channels = config.levels()[0].channels;
    let head = &config.architecture.as_rcnn().unwrap().box_head;
    let mut shapes: Vec<_> =
        (0..4).flat_map(|index| normed_conv(&index.to_string(), channels, channels)).collect();
    let pooled = channels * head.roi_output * head.roi_output;
    shapes.push(("5.weight".to_owned(), vec![head.hidden, pooled]));
    shapes.push(("5.bias".to_owned(), vec![head.hidden]));
    compare(&shapes, [head.roi_output, channels], |weights, pooled, filled| {
        BoxHead::load(weights, channels, head).unwrap().forward(pooled, filled).unwrap()
    });
}

#[test]
fn mask_heads_learn_from_filled_slots() {
    let config = config();
    let head = config.architecture.as_rcnn().unwrap().mask_head.as_ref().unwrap();
    let levels = config.levels();
    let (mut channels, classes) = (levels[0].channels, config.num_classes);
    let mut shapes = Vec::new();
    for (index, outputs) in head.conv_channels.iter().copied().enumerate() {
        shapes.extend(normed_conv(&format!("mask_head.{index}"), channels, outputs));
        channels = outputs;
    }
    let enlarged = head.predictor_channels;
    for (name, dims) in [
        ("conv5_mask.weight", vec![channels, enlarged, 2, 2]),
        ("conv5_mask.bias", vec![enlarged]),
        ("mask_fcn_logits.weight", vec![classes, enlarged, 1, 1]),
        ("mask_fcn_logits.bias", vec![classes]),
    ] {
        shapes.push((format!("mask_predictor.{name}"), dims));
    }
    let inputs = levels[0].channels;
    compare(&shapes, [head.roi_output, inputs], |weights, pooled, filled| {
        let labels = match filled {
            FilledRows::All => vec![1u32, 2, 3, 4, 1],
            FilledRows::UpTo(_) => vec![1, 2, 3, 0, 0, 0, 0, 0, 4, 1, 0, 0],
        };
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        let loaded = MaskHead::load(weights, &levels, classes, head).unwrap();
        loaded.predict(pooled, &labels, filled).unwrap()
    });
}
