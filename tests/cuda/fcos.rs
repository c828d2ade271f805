//! FCOS on CUDA: detections as on the CPU, losses and gradients as torchvision's, and what a pass copies.

use candle_detection::train::RandomSampler;

use super::common::Fixture;
use super::common::narrow::Steps;
use super::counters::{Counts, alone, count};
use super::support::cuda;
use super::whole_model::{assert_budget, compare, tiny};

const NAME: &str = "tiny_fcos";
const CASES: [&str; 3] = ["objects", "one_empty", "all_empty"];

#[test]
fn detections_of_fcos_are_the_same() {
    let _alone = alone();
    compare(NAME);
}

#[test]
fn a_pass_of_fcos_makes_one_upload_and_one_download() {
    let _alone = alone();
    assert_budget(&tiny(NAME, cuda()), &Fixture::load(NAME).images());
}

#[test]
fn steps_of_fcos_are_torchvisions() {
    let _alone = alone();
    let steps = Steps::of(NAME);
    for case in CASES {
        steps.compare(case, &cuda());
    }
}

/// The pixels of all images, and what they show, are all that is copied.
#[test]
fn a_step_of_fcos_makes_two_uploads() {
    let _alone = alone();
    let steps = Steps::of(NAME);
    let network = steps.network(&cuda());
    let parameters = network.parameters().trainable();
    for case in CASES {
        let batch = steps.batch(case);
        let step = || {
            let mut sampler = RandomSampler::new(7, 0);
            let (evaluated, losses) = count(|| network.evaluate(&batch, &mut sampler).unwrap());
            let (_, backward) = count(|| evaluated.gradients(&parameters).unwrap());
            [losses, backward]
        };
        step();
        let copies = [Counts { host_to_device: 2, ..Counts::default() }, Counts::default()];
        for (found, expected) in step().into_iter().zip(copies) {
            let Some(found) = found else { continue };
            let expected = Counts { launches: found.launches, ..expected };
            assert_eq!(found, expected, "{case}");
        }
    }
}
