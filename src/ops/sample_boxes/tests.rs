use candle_core::{Device, Tensor};

use super::*;
use crate::ops::random_bits;
use crate::ops::support::matches::Match;

const RPN: SampleParams = SampleParams { samples: 256, positive_fraction: 0.5 };

/// Codes of so many positives, then negatives, then ignored boxes.
fn codes(positives: usize, negatives: usize, ignored: usize) -> Vec<u32> {
    let object = Match::Object(3).code();
    let background = Match::Background.code();
    [vec![object; positives], vec![background; negatives], vec![0; ignored]].concat()
}

fn matches(images: &[Vec<u32>]) -> Tensor {
    Tensor::from_vec(images.concat(), (images.len(), images[0].len()), &Device::Cpu).unwrap()
}

fn draw(matches: &Tensor, seed: u64, params: &SampleParams) -> Samples {
    let priorities = random_bits(seed, matches.dims2().unwrap(), &Device::Cpu).unwrap();
    sample_boxes(matches, &priorities, params).unwrap()
}

/// The valid slots of an image.
fn of_image(chosen: &Chosen, image: usize) -> Vec<u32> {
    let count = chosen.counts.to_vec1::<u32>().unwrap()[image] as usize;
    let index: Vec<u32> = chosen.index.get(image).unwrap().to_vec1().unwrap();
    assert!(index[count..].iter().all(|index| *index == 0));
    index[..count].to_vec()
}

#[test]
fn negatives_fill_up_what_is_missing_of_positives() {
    let roi = SampleParams { samples: 512, positive_fraction: 0.25 };
    for (params, positives, negatives, expected) in [
        (RPN, 1000, 9000, (128, 128)),
        (RPN, 5, 9000, (5, 251)),
        (RPN, 0, 9000, (0, 256)),
        (RPN, 1000, 3, (128, 3)),
        (RPN, 0, 0, (0, 0)),
        (roi, 300, 1700, (128, 384)),
        (roi, 1, 7, (1, 7)),
    ] {
        let samples = draw(&matches(&[codes(positives, negatives, 5)]), 1, &params);
        let (all, chosen) = (of_image(&samples.all, 0), of_image(&samples.positives, 0));
        assert_eq!((chosen.len(), all.len() - chosen.len()), expected);
        let (first, rest) = all.split_at(chosen.len());
        assert_eq!(first, chosen);
        for list in [first, rest] {
            assert!(list.windows(2).all(|pair| pair[0] < pair[1]), "ascending, once each");
        }
        let end = positives as u32;
        assert!(first.iter().all(|index| *index < end));
        assert!(rest.iter().all(|index| (end..end + negatives as u32).contains(index)));
    }
}

#[test]
fn the_lowest_priorities_are_chosen_and_of_equal_ones_the_first() {
    let matches = matches(&[codes(4, 5, 1)]);
    let priorities = [9u32, 2, 2, 1, u32::MAX, 7, 7, 0, 7, 0];
    let priorities = Tensor::new(&priorities, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let params = SampleParams { samples: 5, positive_fraction: 0.4 };
    let samples = sample_boxes(&matches, &priorities, &params).unwrap();
    assert_eq!(of_image(&samples.positives, 0), [1, 3]);
    assert_eq!(of_image(&samples.all, 0), [1, 3, 5, 6, 7]);
}

#[test]
fn images_are_apart() {
    let images = [codes(3, 40, 57), codes(90, 10, 0), codes(0, 0, 100)];
    let params = SampleParams { samples: 20, positive_fraction: 0.5 };
    let samples = draw(&matches(&images), 4, &params);
    let lengths = |chosen: &Chosen| (0..3).map(|i| of_image(chosen, i).len()).collect::<Vec<_>>();
    assert_eq!(lengths(&samples.positives), [3, 10, 0]);
    assert_eq!(lengths(&samples.all), [20, 20, 0]);
}

/// Over many draws each candidate is chosen equally often.
#[test]
fn no_candidate_is_preferred() {
    let params = SampleParams { samples: 20, positive_fraction: 0.5 };
    let matches = matches(&[codes(30, 60, 0)]);
    let mut counts = vec![0u32; 90];
    for seed in 0..4000 {
        for index in of_image(&draw(&matches, seed, &params).all, 0) {
            counts[index as usize] += 1;
        }
    }
    // A third of 4000 for positives, with a standard deviation of 30; a sixth for negatives, with one of 24.
    assert!(counts[..30].iter().all(|n| (1180..1490).contains(n)), "{counts:?}");
    assert!(counts[30..].iter().all(|n| (545..790).contains(n)), "{counts:?}");
}

#[test]
fn wrong_arguments_are_named() {
    let matches = matches(&[codes(1, 2, 0)]);
    let priorities = Tensor::zeros((1, 2), DType::U32, &Device::Cpu).unwrap();
    let message = sample_boxes(&matches, &priorities, &RPN).unwrap_err().to_string();
    assert!(message.contains("`priorities`"), "{message}");
}
