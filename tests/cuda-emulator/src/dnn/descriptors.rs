//! Descriptors of tensors, filters, convolutions and activations. Only four dimensions.
use super::*;

/// Dimensions in the order batch, channels, height, width, whatever the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub ty: Ty,
    pub dims: [usize; 4],
    pub strides: [usize; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Nchw,
    Nhwc,
}

impl Layout {
    fn of(code: c_int) -> Checked<Layout> {
        match code {
            0 => Ok(Layout::Nchw),
            1 => Ok(Layout::Nhwc),
            _ => unsupported(format!("tensor format {code} is not emulated")),
        }
    }

    /// Strides of a packed tensor.
    fn strides(self, [_, c, h, w]: [usize; 4]) -> [usize; 4] {
        match self {
            Layout::Nchw => [c * h * w, h * w, w, 1],
            Layout::Nhwc => [c * h * w, 1, w * c, c],
        }
    }
}

impl Tensor {
    /// Packed in this layout; strides of dimensions of length one do not matter.
    pub fn is_packed(&self, layout: Layout) -> bool {
        let want = layout.strides(self.dims);
        (0..4).all(|d| self.dims[d] == 1 || self.strides[d] == want[d])
    }

    /// Elements from the first to the last.
    pub fn span(&self) -> usize {
        let last = self.dims.iter().zip(self.strides).map(|(d, s)| (d - 1) * s).sum::<usize>();
        last + 1
    }
}

/// `[outputs, inputs per group, height, width]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    pub ty: Ty,
    pub layout: Layout,
    pub dims: [usize; 4],
}

impl Filter {
    pub fn strides(&self) -> [usize; 4] {
        self.layout.strides(self.dims)
    }
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub pad: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Otherwise the filter is turned round, as in the mathematical definition.
    pub cross_correlation: bool,
    pub compute: Ty,
    pub groups: usize,
    pub math: c_int,
}

impl Convolution {
    /// Height (0) or width (1) that comes out; None when the filter is larger than the input.
    pub fn output(&self, d: usize, x: &Tensor, w: &Filter) -> Option<usize> {
        let reach = self.dilation[d] * (w.dims[d + 2] - 1) + 1;
        let room = (x.dims[d + 2] + 2 * self.pad[d]).checked_sub(reach)?;
        Some(room / self.stride[d] + 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activation {
    pub mode: c_int,
    pub propagate_nan: bool,
    pub coefficient: f64,
}

/// A descriptor as programs hold it: nothing until it is set.
pub struct Slot<T>(Option<T>);

impl<T: Copy> Slot<T> {
    /// The contents of a descriptor that a call was given.
    pub unsafe fn read(p: *const Slot<T>, what: &str) -> Checked<T> {
        match given(p, what)?.0 {
            Some(v) => Ok(v),
            None => bad(format!("{what} was never set")),
        }
    }
}

macro_rules! slots {
    ($($create:ident $destroy:ident $t:ty;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $create(d: *mut *mut Slot<$t>) -> Status {
            *d = Box::into_raw(Box::new(Slot(None)));
            SUCCESS
        }
        #[no_mangle]
        pub unsafe extern "C" fn $destroy(d: *mut Slot<$t>) -> Status {
            if !d.is_null() {
                drop(Box::from_raw(d));
            }
            SUCCESS
        }
    )* };
}
// stub!(cudnnCreateTensorDescriptor stub!(cudnnDestroyTensorDescriptor
// stub!(cudnnCreateFilterDescriptor stub!(cudnnDestroyFilterDescriptor
// stub!(cudnnCreateConvolutionDescriptor stub!(cudnnDestroyConvolutionDescriptor
// stub!(cudnnCreateActivationDescriptor stub!(cudnnDestroyActivationDescriptor
slots! {
    cudnnCreateTensorDescriptor cudnnDestroyTensorDescriptor Tensor;
    cudnnCreateFilterDescriptor cudnnDestroyFilterDescriptor Filter;
    cudnnCreateConvolutionDescriptor cudnnDestroyConvolutionDescriptor Convolution;
    cudnnCreateActivationDescriptor cudnnDestroyActivationDescriptor Activation;
}

unsafe fn set<T>(call: &str, slot: *mut Slot<T>, value: Checked<T>) -> Status {
    if slot.is_null() {
        return NULL_POINTER;
    }
    status(call, value.map(|v| (*slot).0 = Some(v)))
}

/// Positive numbers.
fn sizes<const N: usize>(values: [c_int; N], what: &str) -> Checked<[usize; N]> {
    if values.iter().any(|&v| v <= 0) {
        return bad(format!("{what} {values:?} are not all positive"));
    }
    Ok(values.map(|v| v as usize))
}

unsafe fn four(call: &str, count: c_int, p: *const c_int) -> Checked<[c_int; 4]> {
    if count != 4 {
        return unsupported(format!("{call}: {count} dimensions are not emulated, only 4"));
    }
    given(p, "the list of dimensions")?;
    Ok([*p, *p.add(1), *p.add(2), *p.add(3)])
}

fn packed(format: c_int, ty: c_int, dims: [c_int; 4]) -> Checked<Tensor> {
    let (layout, ty, dims) = (Layout::of(format)?, type_of(ty)?, sizes(dims, "dimensions")?);
    Ok(Tensor { ty, dims, strides: layout.strides(dims) })
}

fn strided(ty: c_int, dims: [c_int; 4], strides: [c_int; 4]) -> Checked<Tensor> {
    let dims = sizes(dims, "dimensions")?;
    Ok(Tensor { ty: type_of(ty)?, dims, strides: sizes(strides, "strides")? })
}

#[no_mangle]
pub unsafe extern "C" fn cudnnSetTensor4dDescriptor(
    d: *mut Slot<Tensor>,
    format: c_int,
    ty: c_int,
    n: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> Status {
    call!("cudnnSetTensor4dDescriptor");
    set("cudnnSetTensor4dDescriptor", d, packed(format, ty, [n, c, h, w]))
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetTensor4dDescriptorEx(
    d: *mut Slot<Tensor>,
    ty: c_int,
    n: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
    sn: c_int,
    sc: c_int,
    sh: c_int,
    sw: c_int,
) -> Status {
    call!("cudnnSetTensor4dDescriptorEx");
    set("cudnnSetTensor4dDescriptorEx", d, strided(ty, [n, c, h, w], [sn, sc, sh, sw]))
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetTensorNdDescriptor(
    d: *mut Slot<Tensor>,
    ty: c_int,
    count: c_int,
    dims: *const c_int,
    strides: *const c_int,
) -> Status {
    const CALL: &str = "cudnnSetTensorNdDescriptor";
    call!("cudnnSetTensorNdDescriptor");
    let all = four(CALL, count, dims).and_then(|dims| Ok((dims, four(CALL, count, strides)?)));
    set(CALL, d, all.and_then(|(dims, strides)| strided(ty, dims, strides)))
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetTensorNdDescriptorEx(
    d: *mut Slot<Tensor>,
    format: c_int,
    ty: c_int,
    count: c_int,
    dims: *const c_int,
) -> Status {
    const CALL: &str = "cudnnSetTensorNdDescriptorEx";
    call!("cudnnSetTensorNdDescriptorEx");
    set(CALL, d, four(CALL, count, dims).and_then(|dims| packed(format, ty, dims)))
}
#[no_mangle]
pub unsafe extern "C" fn cudnnGetTensorSizeInBytes(
    d: *const Slot<Tensor>,
    size: *mut size_t,
) -> Status {
    let tensor = Slot::read(d, "the tensor descriptor");
    status(
        "cudnnGetTensorSizeInBytes",
        tensor.map(|t| *size = t.dims.iter().product::<usize>() * t.ty.size()),
    )
}

fn filter(format: c_int, ty: c_int, dims: [c_int; 4]) -> Checked<Filter> {
    Ok(Filter {
        ty: type_of(ty)?,
        layout: Layout::of(format)?,
        dims: sizes(dims, "filter dimensions")?,
    })
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetFilter4dDescriptor(
    d: *mut Slot<Filter>,
    ty: c_int,
    format: c_int,
    k: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> Status {
    call!("cudnnSetFilter4dDescriptor");
    set("cudnnSetFilter4dDescriptor", d, filter(format, ty, [k, c, h, w]))
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetFilterNdDescriptor(
    d: *mut Slot<Filter>,
    ty: c_int,
    format: c_int,
    count: c_int,
    dims: *const c_int,
) -> Status {
    const CALL: &str = "cudnnSetFilterNdDescriptor";
    call!("cudnnSetFilterNdDescriptor");
    set(CALL, d, four(CALL, count, dims).and_then(|dims| filter(format, ty, dims)))
}

fn convolution(
    pad: [c_int; 2],
    stride: [c_int; 2],
    dilation: [c_int; 2],
    mode: c_int,
    compute: c_int,
) -> Checked<Convolution> {
    if pad.iter().any(|&p| p < 0) || !(0..=1).contains(&mode) {
        return bad(format!("padding {pad:?}, mode {mode}"));
    }
    Ok(Convolution {
        pad: pad.map(|p| p as usize),
        stride: sizes(stride, "strides")?,
        dilation: sizes(dilation, "dilations")?,
        cross_correlation: mode == 1,
        compute: type_of(compute)?,
        groups: 1,
        math: 0,
    })
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetConvolution2dDescriptor(
    d: *mut Slot<Convolution>,
    pad_h: c_int,
    pad_w: c_int,
    stride_h: c_int,
    stride_w: c_int,
    dilation_h: c_int,
    dilation_w: c_int,
    mode: c_int,
    compute: c_int,
) -> Status {
    call!("cudnnSetConvolution2dDescriptor");
    let (stride, dilation) = ([stride_h, stride_w], [dilation_h, dilation_w]);
    let value = convolution([pad_h, pad_w], stride, dilation, mode, compute);
    set("cudnnSetConvolution2dDescriptor", d, value)
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetConvolutionNdDescriptor(
    d: *mut Slot<Convolution>,
    count: c_int,
    pad: *const c_int,
    stride: *const c_int,
    dilation: *const c_int,
    mode: c_int,
    compute: c_int,
) -> Status {
    const CALL: &str = "cudnnSetConvolutionNdDescriptor";
    call!("cudnnSetConvolutionNdDescriptor");
    if count != 2 {
        return status(
            CALL,
            unsupported(format!("{count} spatial dimensions, only 2 are emulated")),
        );
    }
    if pad.is_null() || stride.is_null() || dilation.is_null() {
        return NULL_POINTER;
    }
    let two = |p: *const c_int| [*p, *p.add(1)];
    set(CALL, d, convolution(two(pad), two(stride), two(dilation), mode, compute))
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetConvolutionGroupCount(
    d: *mut Slot<Convolution>,
    groups: c_int,
) -> Status {
    let value = Slot::read(d, "the convolution descriptor").and_then(|c| {
        let [groups] = sizes([groups], "groups")?;
        Ok(Convolution { groups, ..c })
    });
    set("cudnnSetConvolutionGroupCount", d, value)
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetConvolutionMathType(
    d: *mut Slot<Convolution>,
    math: c_int,
) -> Status {
    let value = Slot::read(d, "the convolution descriptor").and_then(|c| match math {
        0..=3 => Ok(Convolution { math, ..c }),
        _ => bad(format!("math type {math}")),
    });
    set("cudnnSetConvolutionMathType", d, value)
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetActivationDescriptor(
    d: *mut Slot<Activation>,
    mode: c_int,
    nan: c_int,
    coefficient: f64,
) -> Status {
    call!("cudnnSetActivationDescriptor");
    let value = match (mode, nan) {
        (0..=6, 0..=1) => Ok(Activation { mode, propagate_nan: nan == 1, coefficient }),
        _ => bad(format!("activation mode {mode}, NaN propagation {nan}")),
    };
    set("cudnnSetActivationDescriptor", d, value)
}
