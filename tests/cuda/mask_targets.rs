//! What masks should have been: what the CPU computes, the GPU computes.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{ObjectMasks, mask_targets};

use super::counters::alone;
use super::support::{Random, assert_close, assert_launches, cuda, upload, values};

/// Rounding of sums in another order.
const TOLERANCE: f32 = 1e-5;

/// The arguments of the op.
struct Batch {
    masks: ObjectMasks,
    boxes: Tensor,
    objects: Tensor,
    counts: Tensor,
}

impl Batch {
    fn run(&self, side: usize) -> Tensor {
        mask_targets(&self.masks, &self.boxes, &self.objects, &self.counts, side).unwrap()
    }

    fn on_gpu(&self) -> Self {
        let masks =
            ObjectMasks { pixels: upload(&self.masks.pixels), places: upload(&self.masks.places) };
        Self {
            masks,
            boxes: upload(&self.boxes),
            objects: upload(&self.objects),
            counts: upload(&self.counts),
        }
    }

    fn with_places(&self, places: &[[u32; 9]]) -> Self {
        let places =
            Tensor::from_slice(places.as_flattened(), self.masks.places.dims(), &Device::Cpu);
        let masks = ObjectMasks { pixels: self.masks.pixels.clone(), places: places.unwrap() };
        Self {
            masks,
            boxes: self.boxes.clone(),
            objects: self.objects.clone(),
            counts: self.counts.clone(),
        }
    }
}

/// Height and width of an image, and of the resized one.
type Sizes = [(usize, usize); 2];

/// Images with `objects` each, of any size and some without pixels, and `slots` boxes each, some out of the image, tiny,
/// reversed or not finite. Not all slots are filled, and the others hold nonsense.
fn batch(random: &mut Random, images: &[Sizes], objects: usize, slots: usize) -> Batch {
    let (mut pixels, mut places) = (Vec::new(), Vec::new());
    for sizes in images {
        for object in 0..objects {
            let place = if object == 1 { [0; 4] } else { part(random, sizes[0]) };
            let [_, _, rows, columns] = place;
            places.push(pixels.len() as u32);
            places.extend(place);
            places.extend(sizes.iter().flat_map(|size| [size.0 as u32, size.1 as u32]));
            pixels.extend((0..rows * columns).map(|_| u8::from(random.below(3) > 0)));
        }
    }
    let (mut corners, mut chosen) = (Vec::new(), Vec::new());
    let counts: Vec<u32> = (0..images.len()).map(|image| (slots - 2 * image) as u32).collect();
    for ([_, resized], count) in images.iter().zip(&counts) {
        for slot in 0..slots as u32 {
            let is_filled = slot < *count;
            corners.extend(if is_filled { corners_in(random, *resized, slot) } else { [9.0; 4] });
            chosen.push(if is_filled { random.below(objects) as u32 } else { u32::MAX });
        }
    }
    let device = &Device::Cpu;
    let (n, bytes) = (images.len(), pixels.len());
    Batch {
        masks: ObjectMasks {
            pixels: Tensor::from_vec(pixels, bytes, device).unwrap(),
            places: Tensor::from_vec(places, (n, objects, 9), device).unwrap(),
        },
        boxes: Tensor::from_vec(corners, (n, slots, 4), device).unwrap(),
        objects: Tensor::from_vec(chosen, (n, slots), device).unwrap(),
        counts: Tensor::from_vec(counts, n, device).unwrap(),
    }
}

/// Top, left, rows and columns of a part of an image.
fn part(random: &mut Random, (height, width): (usize, usize)) -> [u32; 4] {
    let (top, left) = (random.below(height), random.below(width));
    let (rows, columns) = (1 + random.below(height - top), 1 + random.below(width - left));
    [top, left, rows, columns].map(|number| number as u32)
}

fn corners_in(random: &mut Random, (height, width): (usize, usize), slot: u32) -> [f32; 4] {
    let (height, width) = (height as f32, width as f32);
    let (x, y) = (random.range(-9.0, width), random.range(-9.0, height));
    match slot % 8 {
        0 => [-9.3, -6.0, width + 4.0, height + 7.5],
        1 => [x, y, x + 0.3, y + 0.01],
        2 => [width + 3.0, y, width + 40.0, y + 20.0],
        3 => [x, y, x - 5.0, y + 12.0],
        4 => [f32::NAN, y, x, f32::INFINITY],
        5 => [-3e6, y, 3e6, y + 4.0],
        _ => [x, y, random.range(x + 1.0, width + 9.0), random.range(y + 1.0, height + 9.0)],
    }
}

const IMAGES: [Sizes; 3] = [[(37, 53), (61, 88)], [(90, 64), (45, 31)], [(50, 41), (50, 41)]];

#[test]
fn mask_targets_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(61);
    // More cells than a block has room for, more samples than it keeps at once.
    for (side, slots) in [(28, 17), (1, 9), (7, 24), (41, 8)] {
        let batch = batch(&mut random, &IMAGES, 4, slots);
        let expected = batch.run(side);
        assert!(values(&expected).iter().filter(|share| **share > 0.0).count() > side / 2);
        let batch = batch.on_gpu();
        assert_close(&assert_launches(1, || batch.run(side)), &expected, TOLERANCE);
    }
}

/// Hundreds of samples a cell.
#[test]
fn masks_of_large_images_in_few_cells() {
    let _alone = alone();
    let batch = batch(&mut Random::new(67), &[[(211, 150), (600, 427)]], 3, 7);
    for side in [1, 2] {
        assert_close(&batch.on_gpu().run(side), &batch.run(side), TOLERANCE);
    }
}

#[test]
fn there_may_be_no_objects_no_slots_and_no_images() {
    let _alone = alone();
    let device = &cuda();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, device).unwrap();
    for (images, slots) in [(2, 5), (2, 0), (0, 5)] {
        let batch = Batch {
            masks: ObjectMasks {
                pixels: zeros(&[0], DType::U8),
                places: zeros(&[images, 0, 9], DType::U32),
            },
            boxes: zeros(&[images, slots, 4], DType::F32),
            objects: zeros(&[images, slots], DType::U32),
            // Nobody has an object; the CPU would say that there is none.
            counts: upload(&Tensor::ones(images, DType::U32, &Device::Cpu).unwrap()),
        };
        let found = batch.run(3);
        assert_eq!(found.dims(), [images, slots, 3, 3]);
        assert!(values(&found).iter().all(|share| *share == 0.0));
    }
}

/// The emulator stops at a read outside of a tensor.
#[test]
fn places_that_are_not_there_are_not_read() {
    let _alone = alone();
    let good = [0, 2, 3, 8, 9, 37, 53, 61, 88];
    let batch = batch(&mut Random::new(71), &[IMAGES[0]], 1, 1);
    let bytes = batch.masks.pixels.dim(0).unwrap() as u32;
    let max = u32::MAX;
    for (number, wrong) in [(0, bytes), (0, max), (3, max), (4, max), (7, 0), (8, 0)] {
        let mut place = good;
        place[number] = wrong;
        let found = batch.with_places(&[place]).on_gpu().run(5);
        assert_eq!(values(&found), [0.0; 25], "{place:?}");
    }
    // Contradictions that stay within the pixels.
    for (number, wrong) in [(1, max), (2, max), (5, 0), (6, 1), (7, max)] {
        let mut place = good;
        place[3] = 1;
        place[4] = bytes.min(3);
        place[number] = wrong;
        batch.with_places(&[place]).on_gpu().run(5);
    }
}
