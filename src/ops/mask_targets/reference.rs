//! The definition, sample by sample on the whole resized bitmap, in f64.

/// An object of an image.
pub(super) struct Bitmap {
    pub height: usize,
    pub width: usize,
    /// Height and width of the resized image.
    pub resized: (usize, usize),
    /// Row by row, 1 inside the object.
    pub pixels: Vec<u8>,
}

/// Pools a bitmap in a box, `[side, side]`.
pub(super) fn run(bitmap: &Bitmap, bbox: [f32; 4], side: usize) -> Vec<f64> {
    let [x1, y1, x2, y2] = bbox.map(f64::from);
    let bin_y = (y2 - y1).max(1.0) / side as f64;
    let bin_x = (x2 - x1).max(1.0) / side as f64;
    let (n_y, n_x) = (bin_y.ceil() as usize, bin_x.ceil() as usize);
    let mut target = Vec::new();
    for row in 0..side {
        for column in 0..side {
            let mut sum = 0.0;
            for j in 0..n_y {
                for i in 0..n_x {
                    let y = y1 + row as f64 * bin_y + (j as f64 + 0.5) * bin_y / n_y as f64;
                    let x = x1 + column as f64 * bin_x + (i as f64 + 0.5) * bin_x / n_x as f64;
                    sum += bitmap.bilinear(y, x);
                }
            }
            target.push(sum / (n_y * n_x) as f64);
        }
    }
    target
}

impl Bitmap {
    fn bilinear(&self, y: f64, x: f64) -> f64 {
        let (rows, columns) = self.resized;
        let (height, width) = (rows as f64, columns as f64);
        if y < -1.0 || y > height || x < -1.0 || x > width {
            return 0.0;
        }
        let (y, x) = (y.clamp(0.0, height - 1.0), x.clamp(0.0, width - 1.0));
        let (low_y, low_x) = (y as usize, x as usize);
        let (high_y, high_x) = ((low_y + 1).min(rows - 1), (low_x + 1).min(columns - 1));
        let (fy, fx) = (y - low_y as f64, x - low_x as f64);
        (1.0 - fy) * ((1.0 - fx) * self.resized(low_y, low_x) + fx * self.resized(low_y, high_x))
            + fy * ((1.0 - fx) * self.resized(high_y, low_x) + fx * self.resized(high_y, high_x))
    }

    /// A pixel of the resized image.
    fn resized(&self, y: usize, x: usize) -> f64 {
        let row = nearest(y, self.height, self.resized.0);
        let column = nearest(x, self.width, self.resized.1);
        f64::from(self.pixels[row * self.width + column])
    }
}

/// As torch has it: the scale is a quotient in f32.
fn nearest(index: usize, original: usize, resized: usize) -> usize {
    let scale = original as f32 / resized as f32;
    ((index as f32 * scale) as usize).min(original - 1)
}
