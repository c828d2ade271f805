//! One-stage detectors on CUDA: detections as on the CPU, losses and gradients as torchvision's, and what a pass copies.

use super::common::narrow::Steps;
use super::counters::{Counts, alone, count};
use super::support::cuda;
use super::whole_model::{assert_budget, compare, tiny};
use candle_detection::train::RandomSampler;

const NAMES: [&str; 5] =
    ["tiny_retinanet", "tiny_retinanet_v2", "tiny_fcos", "tiny_ssd", "tiny_ssdlite"];

#[test]
fn detections_of_one_stage_are_the_same() {
    let _alone = alone();
    for name in NAMES {
        compare(name);
    }
}

#[test]
fn a_pass_of_one_stage_makes_one_upload_and_one_download() {
    let _alone = alone();
    for name in NAMES {
        let images = super::common::Fixture::load(name).images();
        assert_budget(&tiny(name, cuda()), &images);
    }
}

#[test]
fn steps_of_one_stage_are_torchvisions() {
    let _alone = alone();
    for name in NAMES {
        let steps = Steps::of(name);
        for case in ["objects", "one_empty", "all_empty"] {
            steps.compare(case, &cuda());
        }
    }
}

/// The pixels of all images, and what they show, are all that is copied.
#[test]
fn a_step_of_one_stage_makes_two_uploads() {
    let _alone = alone();
    for name in NAMES {
        let steps = Steps::of(name);
        let network = steps.network(&cuda());
        let parameters = network.parameters().trainable();
        for case in ["objects", "one_empty", "all_empty"] {
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
                assert_eq!(found, expected, "{name} {case}");
            }
        }
    }
}
