use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::ops::support::testing::{
    Random, SMALL_STEP, assert_close_relative, assert_gradients, exact, fixture, values,
};

fn whole(labels: &[u32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(labels, dims, &Device::Cpu).unwrap()
}

/// Value and gradient.
fn differentiate(logits: &Tensor, targets: &Tensor) -> (f32, Tensor) {
    let variable = Var::from_tensor(logits).unwrap();
    let loss = keypoint_loss(&variable, targets).unwrap();
    let gradients = loss.backward().unwrap();
    (loss.to_scalar().unwrap(), gradients.get(variable.as_tensor()).unwrap().clone())
}

/// Targets of which about a third is ignored.
fn targets(random: &mut Random, n: usize, cells: usize) -> Vec<u32> {
    let target = |random: &mut Random| match random.below(3) {
        0 => IGNORED_LABEL,
        _ => random.below(cells) as u32,
    };
    (0..n).map(|_| target(random)).collect()
}

#[test]
fn agrees_with_torchvision() {
    let file = fixture("keypoints.safetensors");
    let get = |name: &str| &file[&format!("loss/{name}")];
    for case in ["some", "none"] {
        let (value, gradient) = differentiate(get("logits"), get(&format!("{case}/targets")));
        let expected = values(get(&format!("{case}/value")))[0];
        assert!((value - expected).abs() <= 1e-6 * expected, "{value} {expected}");
        assert_close_relative(&gradient, get(&format!("{case}/gradient")), 1e-5);
    }
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(41);
    for [rows, height, width, keypoints] in [[1, 1, 1, 1], [3, 4, 5, 17], [7, 2, 1, 3]] {
        let maps = Maps { rows, cells: height * width, keypoints };
        let labels = targets(&mut random, rows * keypoints, maps.cells);
        let truth = whole(&labels, &[rows, keypoints]);
        assert_gradients(
            &[random.tensor(&[rows, height, width, keypoints])],
            SMALL_STEP,
            |t| keypoint_loss(&t[0], &truth).unwrap(),
            |t| vec![reference::keypoint_loss(&t[0], &labels, maps)],
        );
        let logits = random.tensor(&[rows, height, width, keypoints]);
        let value = keypoint_loss(&logits, &truth).unwrap().to_scalar::<f32>().unwrap();
        let expected = reference::keypoint_loss(&exact(&values(&logits)), &labels, maps);
        assert!((f64::from(value) - expected).abs() < 1e-6, "{value} {expected}");
    }
}

#[test]
fn rows_may_be_several_axes() {
    let mut random = Random::new(43);
    let logits = random.tensor(&[6, 3, 4, 2]);
    let labels = targets(&mut random, 12, 12);
    let flat = differentiate(&logits, &whole(&labels, &[6, 2]));
    let logits = logits.reshape((2, 3, 3, 4, 2)).unwrap();
    let (value, gradient) = differentiate(&logits, &whole(&labels, &[2, 3, 2]));
    assert_eq!((value, values(&gradient)), (flat.0, values(&flat.1)));
}

#[test]
fn nothing_to_learn_costs_nothing() {
    let logits = Tensor::full(f32::NAN, (2, 3, 3, 2), &Device::Cpu).unwrap();
    let (value, gradient) = differentiate(&logits, &whole(&[IGNORED_LABEL; 4], &[2, 2]));
    assert_eq!((value, values(&gradient)), (0.0, vec![0.0; 36]));
    for dims in [[0, 3, 3, 2], [2, 3, 3, 0]] {
        let logits = Tensor::zeros(&dims, DType::F32, &Device::Cpu).unwrap();
        let truth = Tensor::zeros((dims[0], dims[3]), DType::U32, &Device::Cpu).unwrap();
        assert_eq!(differentiate(&logits, &truth).0, 0.0);
    }
}

/// Only the maps that count.
#[test]
fn what_is_not_finite_shows_where_it_counts() {
    let mut numbers = values(&Random::new(45).tensor(&[1, 2, 2, 2]));
    numbers[3] = f32::NAN;
    let logits = Tensor::from_vec(numbers, (1, 2, 2, 2), &Device::Cpu).unwrap();
    assert!(differentiate(&logits, &whole(&[0, 0], &[1, 2])).0.is_nan());
    let (value, gradient) = differentiate(&logits, &whole(&[0, IGNORED_LABEL], &[1, 2]));
    assert!(value.is_finite() && values(&gradient).iter().all(|slope| slope.is_finite()));
    // Large logits don't overflow.
    let logits = Tensor::new(&[4e3f32, 0.0, -4e3], &Device::Cpu).unwrap();
    let logits = logits.reshape((1, 1, 3, 1)).unwrap();
    assert_eq!(differentiate(&logits, &whole(&[1], &[1, 1])).0, 4e3);
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let mut random = Random::new(47);
    let logits = random.tensor(&[40, 8, 8, 5]);
    let truth = whole(&targets(&mut random, 200, 64), &[40, 5]);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (value, gradient) = pool.install(|| differentiate(&logits, &truth));
        (value, values(&gradient))
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn misfits_are_named() {
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    let logits = zeros(&[2, 3, 4, 5], DType::F32);
    let cases = [
        ("targets", keypoint_loss(&logits, &zeros(&[2, 4], DType::U32))),
        ("targets", keypoint_loss(&logits, &zeros(&[3, 5], DType::U32))),
        ("targets", keypoint_loss(&logits, &zeros(&[2, 5], DType::F32))),
        ("logits", keypoint_loss(&zeros(&[3, 4], DType::F32), &zeros(&[4], DType::U32))),
        (
            "logits",
            keypoint_loss(&logits.to_dtype(DType::F64).unwrap(), &zeros(&[2, 5], DType::U32)),
        ),
        ("cells below 12", keypoint_loss(&logits, &whole(&[12; 10], &[2, 5]))),
    ];
    for (name, result) in cases {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}
