use candle_core::{Device, Tensor};

use super::{BoxTargets, OP, Objects, Plan};
use crate::error::{Error, Result};
use crate::ops::support::box_set::BoxSet;
use crate::ops::support::check::lend;
use crate::ops::support::geometry::encode;
use crate::ops::support::matches::{IGNORED_LABEL, Match};

pub(super) fn run(
    (index, counts): (&Tensor, &Tensor),
    matches: &Tensor,
    boxes: BoxSet<'_>,
    objects: Objects<'_>,
    weights: [f32; 4],
    plan: Plan,
) -> Result<BoxTargets> {
    let stride = boxes.image_stride(plan.boxes);
    let (corners, object_corners, object_labels) = (boxes.boxes(), objects.boxes, objects.labels);
    lend!(corners: f32, object_corners: f32, object_labels: u32);
    lend!(index: u32, counts: u32, matches: u32);
    let (corners, object_corners) = (corners.as_chunks::<4>().0, object_corners.as_chunks::<4>().0);
    let slots = plan.images * plan.slots;
    let (mut found, mut deltas) = (vec![[0f32; 4]; slots], vec![[0f32; 4]; slots]);
    let (mut labels, mut owners) = (vec![IGNORED_LABEL; slots], vec![0u32; slots]);
    for image in 0..plan.images {
        for slot in 0..plan.slots.min(counts[image] as usize) {
            let place = image * plan.slots + slot;
            let chosen = index[place] as usize;
            within("index", chosen, plan.boxes)?;
            found[place] = corners[image * stride + chosen];
            labels[place] = 0;
            let code = matches[image * plan.boxes + chosen];
            let Match::Object(object) = Match::from_code(code) else { continue };
            within("matches", object as usize, plan.objects)?;
            let at = image * plan.objects + object as usize;
            labels[place] = object_labels[at];
            owners[place] = object;
            deltas[place] = encode(object_corners[at], found[place], weights);
        }
    }
    let (two, three) = ((plan.images, plan.slots), (plan.images, plan.slots, 4));
    let rows = |rows: Vec<[f32; 4]>| Tensor::from_vec(rows.into_flattened(), three, &Device::Cpu);
    Ok(BoxTargets {
        boxes: rows(found)?,
        labels: Tensor::from_vec(labels, two, &Device::Cpu)?,
        objects: Tensor::from_vec(owners, two, &Device::Cpu)?,
        deltas: rows(deltas)?,
    })
}

fn within(argument: &'static str, found: usize, end: usize) -> Result<()> {
    if found < end {
        return Ok(());
    }
    let expected = format!("values below {end}");
    Err(Error::Shape { op: OP, argument, expected, found: vec![found] })
}
