//! One convolution: four descriptors that fit together, and the memory that a call works on.
use super::descriptors::{Convolution, Filter, Layout, Slot, Tensor};
use super::*;
use crate::element::Elements;
use crate::mem;

#[derive(Clone, Copy, Debug)]
pub struct Problem {
    pub x: Tensor,
    pub w: Filter,
    pub conv: Convolution,
    pub y: Tensor,
}

impl Problem {
    pub unsafe fn read(
        x: *const Slot<Tensor>,
        w: *const Slot<Filter>,
        conv: *const Slot<Convolution>,
        y: *const Slot<Tensor>,
    ) -> Checked<Problem> {
        let x = Slot::read(x, "the input's descriptor")?;
        let w = Slot::read(w, "the filter's descriptor")?;
        let conv = Slot::read(conv, "the convolution's descriptor")?;
        let y = Slot::read(y, "the output's descriptor")?;
        Problem { x, w, conv, y }.checked()
    }

    fn checked(self) -> Checked<Problem> {
        let Problem { x, w, conv, y } = self;
        let groups = conv.groups;
        if w.dims[1] * groups != x.dims[1] || w.dims[0] % groups != 0 {
            return bad(format!(
                "filter {:?} in {groups} groups does not fit {} input channels",
                w.dims, x.dims[1]
            ));
        }
        let (Some(height), Some(width)) = (conv.output(0, &x, &w), conv.output(1, &x, &w)) else {
            return bad(format!(
                "filter {:?} is larger than the padded input {:?}",
                w.dims, x.dims
            ));
        };
        let want = [x.dims[0], w.dims[0], height, width];
        if y.dims != want {
            return bad(format!("output {:?} where {want:?} comes out", y.dims));
        }
        if w.ty != x.ty || y.ty != x.ty {
            return unsupported(format!("{:?} input, {:?} filter, {:?} output", x.ty, w.ty, y.ty));
        }
        match (x.ty, conv.compute) {
            (Ty::F32 | Ty::F16 | Ty::BF16, Ty::F32) | (Ty::F16, Ty::F16) | (Ty::F64, Ty::F64) => {}
            (data, compute) => {
                return unsupported(format!("{data:?} data computed in {compute:?}"));
            }
        }
        if w.layout == Layout::Nhwc && !(x.is_packed(Layout::Nhwc) && y.is_packed(Layout::Nhwc)) {
            return unsupported("a filter in NHWC with an input or output that is not packed NHWC");
        }
        Ok(self)
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> u64 {
        let [_, c, r, s] = self.w.dims;
        2 * (self.y.dims.iter().product::<usize>() * c * r * s) as u64
    }
}

/// A range of device memory that a call uses.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub what: &'static str,
    pub at: u64,
    pub bytes: u64,
}

impl Range {
    pub fn tensor(what: &'static str, at: u64, t: &Tensor) -> Checked<Range> {
        Range::new(what, at, t.span(), t.ty)
    }

    pub fn filter(what: &'static str, at: u64, w: &Filter) -> Checked<Range> {
        Range::new(what, at, w.len(), w.ty)
    }

    fn new(what: &'static str, at: u64, elements: usize, ty: Ty) -> Checked<Range> {
        if at == 0 {
            return Err(Refusal { status: NULL_POINTER, why: format!("{what} is null") });
        }
        if !at.is_multiple_of(ty.size() as u64) {
            return bad(format!("{what} at {at:#x} is not aligned for {ty:?}"));
        }
        Ok(Range { what, at, bytes: (elements * ty.size()) as u64 })
    }

    /// A workspace of at least `need` bytes; none is needed when that is zero.
    pub fn workspace(at: u64, bytes: size_t, need: usize) -> Checked<Range> {
        if bytes < need || (at == 0 && need > 0) {
            return bad(format!("a workspace of {bytes} bytes at {at:#x}, {need} are needed"));
        }
        Ok(Range { what: "the workspace", at, bytes: need as u64 })
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.at < other.at + other.bytes && other.at < self.at + self.bytes
    }

    /// Refuses a range that a call writes and another that it reads in the same place.
    pub fn apart(&self, others: &[Range]) -> Checked<()> {
        match others.iter().find(|o| self.overlaps(o)) {
            Some(o) => bad(format!("{} and {} overlap", self.what, o.what)),
            None => Ok(()),
        }
    }

    /// Whether the range is live memory; a fault makes the context unusable.
    pub fn live(&self, call: &str) -> bool {
        if self.bytes == 0 {
            return true;
        }
        match mem::lookup(self.at, self.bytes) {
            Ok(_) => true,
            Err(e) => {
                eprintln!(
                    "cudaemu: {call}: {} at {:#x} of {} bytes: {e}",
                    self.what, self.at, self.bytes
                );
                driver::set_error(driver::ILLEGAL_ADDRESS);
                false
            }
        }
    }

    pub fn elements(&self, ty: Ty) -> Elements {
        Elements { base: mem::host(self.at), ty }
    }

    /// Leaves values that nobody can take for a result, as a workspace holds after use.
    pub fn scribble(&self) {
        if self.bytes > 0 {
            // SAFETY: the range was looked up.
            unsafe { std::ptr::write_bytes(mem::host(self.at), 0xff, self.bytes as usize) };
        }
    }
}
