//! Predictions of a level as rows, one per anchor.

use candle_core::Tensor;

use crate::error::Result;

/// `[N, H_l, W_l, a·F]` → `[N, H_l·W_l·a, F]` of each level, `row` being the shape of a row: the order of anchors is that
/// of channels last, so nothing moves.
///
/// # Errors
/// Those of candle.
pub fn per_anchor(levels: &[Tensor], row: &[usize]) -> Result<Vec<Tensor>> {
    levels
        .iter()
        .map(|level| {
            let n = level.dim(0)?;
            let anchors = level.elem_count() / (n * row.iter().product::<usize>()).max(1);
            Ok(level.reshape([&[n, anchors], row].concat())?)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::per_anchor;

    /// A value at row y, column x, anchor a must land at `(y · W + x) · A + a`, where its anchor is.
    #[test]
    fn predictions_are_in_the_order_of_anchors() {
        let (height, width, anchors) = (2, 5, 3);
        let deltas = Tensor::arange(0u32, (height * width * anchors * 4) as u32, &Device::Cpu)
            .unwrap()
            .reshape((1, height, width, anchors * 4))
            .unwrap();
        let rows = per_anchor(std::slice::from_ref(&deltas), &[4]).unwrap()[0].get(0).unwrap();
        for (y, x, a) in [(0, 0, 1), (1, 0, 0), (1, 4, 2)] {
            let row: Vec<u32> = rows.get((y * width + x) * anchors + a).unwrap().to_vec1().unwrap();
            let cell: Vec<u32> =
                deltas.get(0).unwrap().get(y).unwrap().get(x).unwrap().to_vec1().unwrap();
            assert_eq!(row, cell[a * 4..a * 4 + 4]);
        }
    }
}
