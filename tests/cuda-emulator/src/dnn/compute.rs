//! Convolutions as matrix products over unfolded tiles of the input.
//!
//! A tile is a range of output pixels of one image and group. Its unfolded input has a column for
//! each filter row, filter column and channel, in this order; the filter is brought into the same.
use super::descriptors::Tensor;
use super::problem::Problem;
use crate::element::{Elements, Matrix, Real};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Unfolded elements of a tile: bounds the memory of a thread.
const TILE: usize = 1 << 20;

/// What happens to a sum on its way to the output.
#[derive(Clone, Copy)]
pub struct Epilogue {
    pub alpha: f64,
    pub beta: f64,
    /// What beta scales, laid out as the output is.
    pub residual: Option<Elements>,
    /// One element per channel.
    pub bias: Option<Elements>,
    pub relu: bool,
}

/// Which index of a tile's matrix lies closely together.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// `[pixel][column]`
    Pixels,
    /// `[column][pixel]`
    Columns,
}

impl Order {
    /// The one that runs along the tensor's memory.
    fn of(t: &Tensor) -> Order {
        if t.strides[1] == 1 {
            Order::Pixels
        } else {
            Order::Columns
        }
    }

    fn matrix<R>(self, at: *const R, pixels: usize, columns: usize) -> Matrix<R> {
        match self {
            Order::Pixels => Matrix(at, columns as isize, 1),
            Order::Columns => Matrix(at, 1, pixels as isize),
        }
    }
}

fn parallel(tasks: usize, work: impl Fn(usize) + Sync) {
    let threads = crate::config().threads.min(tasks);
    if threads < 2 {
        return (0..tasks).for_each(work);
    }
    let next = AtomicUsize::new(0);
    let run = || loop {
        let task = next.fetch_add(1, Relaxed);
        if task >= tasks {
            return;
        }
        work(task);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
}

impl Problem {
    /// Input channels of a group.
    fn inputs(&self) -> usize {
        self.w.dims[1]
    }
    /// Output channels of a group.
    fn outputs(&self) -> usize {
        self.w.dims[0] / self.conv.groups
    }
    fn columns(&self) -> usize {
        self.w.dims[1] * self.w.dims[2] * self.w.dims[3]
    }
    fn pixels(&self) -> usize {
        self.y.dims[2] * self.y.dims[3]
    }

    /// The tiles of one image: ranges of output pixels.
    fn tiles(&self) -> Vec<Range<usize>> {
        let step = (TILE / self.columns()).clamp(32, 4096);
        let all = self.pixels();
        (0..all).step_by(step).map(|from| from..(from + step).min(all)).collect()
    }

    /// The input row or column that an output and a filter position meet in, if inside.
    fn source(&self, d: usize, out: usize, k: usize) -> Option<usize> {
        let at = out * self.conv.stride[d] + k * self.conv.dilation[d];
        at.checked_sub(self.conv.pad[d]).filter(|&at| at < self.x.dims[d + 2])
    }

    /// Where a filter position lies in the filter's memory.
    fn tap(&self, output: usize, r: usize, s: usize) -> usize {
        let [_, _, rows, columns] = self.w.dims;
        let (r, s) =
            if self.conv.cross_correlation { (r, s) } else { (rows - 1 - r, columns - 1 - s) };
        let strides = self.w.strides();
        output * strides[0] + r * strides[2] + s * strides[3]
    }

    /// Visits the runs of the filter: position in memory, step, place in `[output][r][s][c]`.
    fn taps(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let [outputs, c, rows, columns] = self.w.dims;
        let step = self.w.strides()[1];
        for k in 0..outputs {
            for r in 0..rows {
                for s in 0..columns {
                    visit(self.tap(k, r, s), step, ((k * rows + r) * columns + s) * c);
                }
            }
        }
    }

    unsafe fn read_filter<R: Real>(&self, w: Elements) -> Vec<R> {
        let mut out = vec![R::default(); self.w.len()];
        let c = self.inputs();
        self.taps(|at, step, to| w.read(at, step, out[to..].as_mut_ptr(), 1, c));
        out
    }
}

/// Visits the parts of `pixels` that lie in one row of a picture `width` wide: row, first column,
/// place in the range, length.
fn rows(pixels: &Range<usize>, width: usize, mut visit: impl FnMut(usize, usize, usize, usize)) {
    let mut at = pixels.start;
    while at < pixels.end {
        let (row, column) = (at / width, at % width);
        let length = (width - column).min(pixels.end - at);
        visit(row, column, at - pixels.start, length);
        at += length;
    }
}

/// Unfolds the input of a tile.
unsafe fn unfold<R: Real>(
    p: &Problem,
    x: Elements,
    (image, group): (usize, usize),
    pixels: &Range<usize>,
    out: &mut Vec<R>,
) -> Order {
    let [sn, sc, sh, sw] = p.x.strides;
    let [_, c, filter_rows, filter_columns] = p.w.dims;
    let (order, width, count) = (Order::of(&p.x), p.y.dims[3], pixels.len());
    let start = image * sn + group * c * sc;
    out.clear();
    out.resize(count * p.columns(), R::default());
    for r in 0..filter_rows {
        for s in 0..filter_columns {
            let column = (r * filter_columns + s) * c;
            rows(pixels, width, |oy, ox, place, length| {
                let Some(iy) = p.source(0, oy, r) else { return };
                let inside = |i: usize| p.source(1, ox + i, s).map(|ix| start + iy * sh + ix * sw);
                if order == Order::Pixels {
                    for i in 0..length {
                        if let Some(at) = inside(i) {
                            let to = (place + i) * p.columns() + column;
                            x.read(at, sc, out[to..].as_mut_ptr(), 1, c);
                        }
                    }
                    return;
                }
                let Some(first) = (0..length).find(|&i| inside(i).is_some()) else { return };
                let last = (first..length).rev().find(|&i| inside(i).is_some()).unwrap_or(first);
                let at = inside(first).unwrap_or(start);
                for channel in 0..c {
                    let to = (column + channel) * count + place + first;
                    let step = sw * p.conv.stride[1];
                    x.read(at + channel * sc, step, out[to..].as_mut_ptr(), 1, last - first + 1);
                }
            });
        }
    }
    order
}

/// Visits the runs of a tile of an output-like tensor: position, step, place in the tile's matrix
/// of this order, first channel, channels per step (0 or 1), length.
fn runs(
    t: &Tensor,
    channels: Range<usize>,
    image: usize,
    pixels: &Range<usize>,
    mut visit: impl FnMut(usize, usize, usize, usize, usize, usize),
) -> Order {
    let [sn, sc, sh, sw] = t.strides;
    let (order, count) = (Order::of(t), channels.len());
    rows(pixels, t.dims[3], |y, x, place, length| {
        let at = image * sn + y * sh + x * sw;
        if order == Order::Pixels {
            for i in 0..length {
                let from = at + i * sw + channels.start * sc;
                visit(from, sc, (place + i) * count, channels.start, 1, count);
            }
        } else {
            for k in 0..count {
                let channel = channels.start + k;
                visit(at + channel * sc, sw, k * pixels.len() + place, channel, 0, length);
            }
        }
    });
    order
}

/// y = epilogue(x * w)
///
/// # Safety
/// The elements are the memory that the problem's descriptors describe.
pub unsafe fn forward<R: Real>(p: &Problem, x: Elements, w: Elements, y: Elements, e: &Epilogue) {
    let filter: Vec<R> = p.read_filter(w);
    let bias: Vec<R> = e.bias.map_or(vec![], |bias| {
        let mut out = vec![R::default(); p.w.dims[0]];
        bias.read(0, 1, out.as_mut_ptr(), 1, out.len());
        out
    });
    let (tiles, groups, outputs) = (p.tiles(), p.conv.groups, p.outputs());
    let (alpha, beta) = (R::of64(e.alpha), R::of64(e.beta));
    parallel(p.x.dims[0] * groups * tiles.len(), |task| {
        let pixels = &tiles[task % tiles.len()];
        let (image, group) = (task / tiles.len() / groups, task / tiles.len() % groups);
        let mut unfolded: Vec<R> = vec![];
        let order = unfold(p, x, (image, group), pixels, &mut unfolded);
        let mut sums = vec![R::default(); pixels.len() * outputs];
        let size = (pixels.len(), p.columns(), outputs);
        let a = order.matrix(unfolded.as_ptr(), size.0, size.1);
        let part = &filter[group * outputs * size.1..];
        let b = Matrix(part.as_ptr(), 1, size.1 as isize);
        let c = Order::of(&p.y).matrix(sums.as_ptr(), size.0, outputs);
        R::gemm(size, a, b, R::default(), c);
        let channels = group * outputs..(group + 1) * outputs;
        let mut old: Vec<R> = vec![];
        runs(&p.y, channels, image, pixels, |at, step, place, channel, advance, length| {
            let run = &mut sums[place..place + length];
            run.iter_mut().for_each(|v| *v = *v * alpha);
            if let Some(residual) = e.residual {
                old.resize(length, R::default());
                residual.read(at, step, old.as_mut_ptr(), 1, length);
                run.iter_mut().zip(&old).for_each(|(v, o)| *v += *o * beta);
            }
            if !bias.is_empty() {
                let add = &bias[channel..];
                run.iter_mut().enumerate().for_each(|(i, v)| *v += add[i * advance]);
            }
            if e.relu {
                // A NaN stays one, so that unset memory shows.
                run.iter_mut().filter(|v| **v < R::default()).for_each(|v| *v = R::default());
            }
            y.write(at, step, run.as_ptr(), 1, length);
        });
    });
}

/// Reads a tile of an output gradient.
unsafe fn gradients<R: Real>(
    p: &Problem,
    dy: Elements,
    (image, group): (usize, usize),
    pixels: &Range<usize>,
) -> (Vec<R>, Order) {
    let outputs = p.outputs();
    let mut out = vec![R::default(); pixels.len() * outputs];
    let channels = group * outputs..(group + 1) * outputs;
    let order = runs(&p.y, channels, image, pixels, |at, step, place, _, _, length| {
        dy.read(at, step, out[place..].as_mut_ptr(), 1, length);
    });
    (out, order)
}

/// dx = alpha (dy * turned w) + beta dx
///
/// # Safety
/// The elements are the memory that the problem's descriptors describe.
pub unsafe fn backward_data<R: Real>(
    p: &Problem,
    w: Elements,
    dy: Elements,
    dx: Elements,
    (alpha, beta): (f64, f64),
) {
    let filter: Vec<R> = p.read_filter(w);
    let (groups, outputs, columns, c) = (p.conv.groups, p.outputs(), p.columns(), p.inputs());
    let [_, _, height, width] = p.x.dims;
    parallel(p.x.dims[0] * groups, |task| {
        let (image, group) = (task / groups, task % groups);
        let mut sums = vec![R::default(); height * width * c];
        for pixels in p.tiles() {
            let (gradient, order) = gradients::<R>(p, dy, (image, group), &pixels);
            let mut folded = vec![R::default(); pixels.len() * columns];
            R::gemm(
                (pixels.len(), outputs, columns),
                order.matrix(gradient.as_ptr(), pixels.len(), outputs),
                Matrix(filter[group * outputs * columns..].as_ptr(), columns as isize, 1),
                R::default(),
                Matrix(folded.as_mut_ptr(), columns as isize, 1),
            );
            fold(p, &pixels, &folded, &mut sums);
        }
        let all = 0..height * width;
        let channels = group * c..(group + 1) * c;
        let mut old: Vec<R> = vec![];
        let order = Order::of(&p.x);
        runs(&p.x, channels, image, &all, |at, step, place, _, _, length| {
            old.resize(length, R::default());
            if beta != 0.0 {
                dx.read(at, step, old.as_mut_ptr(), 1, length);
            }
            for (i, v) in old.iter_mut().enumerate() {
                // The sums are `[pixel][channel]`, the run's places are in the tensor's order.
                let sum = match order {
                    Order::Pixels => sums[place + i],
                    Order::Columns => {
                        let (channel, pixel) = (place / all.len(), place % all.len() + i);
                        sums[pixel * c + channel]
                    }
                };
                let kept = if beta != 0.0 { R::of64(beta) * *v } else { R::default() };
                *v = R::of64(alpha) * sum + kept;
            }
            dx.write(at, step, old.as_ptr(), 1, length);
        });
    });
}

/// Adds the unfolded gradient of a tile where it came from.
fn fold<R: Real>(p: &Problem, pixels: &Range<usize>, folded: &[R], sums: &mut [R]) {
    let [_, c, filter_rows, filter_columns] = p.w.dims;
    let (columns, width) = (p.columns(), p.x.dims[3]);
    for (place, pixel) in pixels.clone().enumerate() {
        let (oy, ox) = (pixel / p.y.dims[3], pixel % p.y.dims[3]);
        for r in 0..filter_rows {
            let Some(iy) = p.source(0, oy, r) else { continue };
            for s in 0..filter_columns {
                let Some(ix) = p.source(1, ox, s) else { continue };
                let from = place * columns + (r * filter_columns + s) * c;
                let to = (iy * width + ix) * c;
                for (sum, v) in sums[to..to + c].iter_mut().zip(&folded[from..from + c]) {
                    *sum += *v;
                }
            }
        }
    }
}

/// dw = alpha (x * dy) + beta dw
///
/// # Safety
/// The elements are the memory that the problem's descriptors describe.
pub unsafe fn backward_filter<R: Real>(
    p: &Problem,
    x: Elements,
    dy: Elements,
    dw: Elements,
    (alpha, beta): (f64, f64),
) {
    let (tiles, groups, outputs, columns) = (p.tiles(), p.conv.groups, p.outputs(), p.columns());
    // Parts of the work, each with sums of its own that are added in order at the end.
    let parts = crate::config().threads.min(p.x.dims[0] * tiles.len());
    let mut all_sums = vec![vec![R::default(); p.w.len()]; parts];
    let targets: Vec<usize> = all_sums.iter_mut().map(|s| s.as_mut_ptr() as usize).collect();
    parallel(groups * parts, |task| {
        let (group, part) = (task / parts, task % parts);
        let into = (targets[part] as *mut R).add(group * outputs * columns);
        let mut unfolded: Vec<R> = vec![];
        for at in (part..p.x.dims[0] * tiles.len()).step_by(parts) {
            let (place, pixels) = ((at / tiles.len(), group), &tiles[at % tiles.len()]);
            let order = unfold(p, x, place, pixels, &mut unfolded);
            let (gradient, gradient_order) = gradients::<R>(p, dy, place, pixels);
            let g = gradient_order.matrix(gradient.as_ptr(), pixels.len(), outputs);
            R::gemm(
                (outputs, pixels.len(), columns),
                Matrix(g.0, g.2, g.1),
                order.matrix(unfolded.as_ptr(), pixels.len(), columns),
                R::of32(1.0),
                Matrix(into, columns as isize, 1),
            );
        }
    });
    let mut sums = vec![R::default(); p.w.len()];
    for part in &all_sums {
        sums.iter_mut().zip(part).for_each(|(sum, v)| *sum += *v);
    }
    let c = p.inputs();
    let mut old = vec![R::default(); c];
    p.taps(|at, step, from| {
        if beta != 0.0 {
            dw.read(at, step, old.as_mut_ptr(), 1, c);
        }
        for (v, sum) in old.iter_mut().zip(&sums[from..from + c]) {
            let kept = if beta != 0.0 { R::of64(beta) * *v } else { R::default() };
            *v = R::of64(alpha) * *sum + kept;
        }
        dw.write(at, step, old.as_ptr(), 1, c);
    });
}

/// db = alpha (sum of dy over all but the channels) + beta db
///
/// # Safety
/// The elements are the memory that the descriptors describe.
pub unsafe fn backward_bias<R: Real>(
    gradient: &Tensor,
    dy: Elements,
    db: Elements,
    step: usize,
    (alpha, beta): (f64, f64),
) {
    let [images, channels, height, width] = gradient.dims;
    let mut sums = vec![R::default(); channels];
    let mut run: Vec<R> = vec![];
    for image in 0..images {
        let all = 0..height * width;
        runs(gradient, 0..channels, image, &all, |at, step, _, channel, advance, length| {
            run.resize(length, R::default());
            dy.read(at, step, run.as_mut_ptr(), 1, length);
            for (i, v) in run.iter().enumerate() {
                sums[channel + i * advance] += *v;
            }
        });
    }
    let mut old = vec![R::default(); channels];
    if beta != 0.0 {
        db.read(0, step, old.as_mut_ptr(), 1, channels);
    }
    for (v, sum) in old.iter_mut().zip(&sums) {
        let kept = if beta != 0.0 { R::of64(beta) * *v } else { R::default() };
        *v = R::of64(alpha) * *sum + kept;
    }
    db.write(0, step, old.as_ptr(), 1, channels);
}
