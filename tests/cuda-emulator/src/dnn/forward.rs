//! Convolution forward, alone and with bias, residual and activation.
use super::algorithms::{Pass, IMPLICIT_PRECOMP_GEMM};
use super::compute::{self, Epilogue};
use super::descriptors::{Activation, Convolution, Filter, Slot, Tensor};
use super::problem::{Problem, Range};
use super::*;
use crate::counters;
use crate::driver::capture::{self, By, Kind};
use std::time::Instant;

/// alpha or beta: a float of the host's, a double for doubles.
pub unsafe fn factor(p: *const u8, ty: Ty) -> Checked<f64> {
    given(p, "alpha or beta")?;
    Ok(if ty == Ty::F64 { *(p as *const f64) } else { *(p as *const f32) as f64 })
}

/// Puts a convolution into the handle's stream once everything about it is known to be right.
pub fn submit(
    call: &'static str,
    stream: usize,
    ranges: Vec<Range>,
    flops: u64,
    work: impl Fn() + Send + Sync + 'static,
) -> Checked<()> {
    crate::trace(|| format!("{call} flops={flops}"));
    let run = move |by: By| {
        if !ranges.iter().all(|r| r.live(call)) {
            return driver::ILLEGAL_ADDRESS;
        }
        let t0 = Instant::now();
        work();
        let ns = t0.elapsed().as_nanos() as u64;
        counters::with(|c| {
            c.convs += (by == By::Host) as u64;
            c.conv_ns += ns;
            c.conv_flops += flops;
        });
        driver::OK
    };
    match capture::enqueue(stream, Kind::Library, run) {
        driver::OK => Ok(()),
        code => Err(Refusal { status: EXECUTION_FAILED, why: format!("driver error {code}") }),
    }
}

/// Calls the f32 or the f64 form of a computation.
macro_rules! in_type {
    ($ty:expr, $f:ident($($arg:expr),*)) => {
        match $ty {
            // SAFETY: the ranges of the call are live memory, and large enough by their descriptors.
            Ty::F64 => unsafe { compute::$f::<f64>($($arg),*) },
            _ => unsafe { compute::$f::<f32>($($arg),*) },
        }
    };
}
pub(super) use in_type;

/// The memory of a forward pass.
struct Memory {
    x: Range,
    w: Range,
    y: Range,
    workspace: Range,
}

impl Memory {
    fn checked(
        p: &Problem,
        algorithm: c_int,
        (x, w, y): (u64, u64, u64),
        (workspace, bytes): (u64, size_t),
    ) -> Checked<Memory> {
        let need = Pass::Forward.workspace(p, algorithm)?;
        let memory = Memory {
            x: Range::tensor("the input", x, &p.x)?,
            w: Range::filter("the filter", w, &p.w)?,
            y: Range::tensor("the output", y, &p.y)?,
            workspace: Range::workspace(workspace, bytes, need)?,
        };
        memory.y.apart(&[memory.x, memory.w, memory.workspace])?;
        memory.workspace.apart(&[memory.x, memory.w])?;
        Ok(memory)
    }

    fn ranges(&self) -> Vec<Range> {
        vec![self.x, self.w, self.y, self.workspace]
    }

    fn run(&self, p: &Problem, epilogue: &Epilogue) {
        self.workspace.scribble();
        let ty = p.x.ty;
        let (x, w, y) = (self.x.elements(ty), self.w.elements(ty), self.y.elements(ty));
        in_type!(ty, forward(p, x, w, y, epilogue));
    }
}

#[no_mangle]
pub unsafe extern "C" fn cudnnConvolutionForward(
    h: *const Handle,
    alpha: *const u8,
    x_desc: *const Slot<Tensor>,
    x: u64,
    w_desc: *const Slot<Filter>,
    w: u64,
    conv: *const Slot<Convolution>,
    algorithm: c_int,
    workspace: u64,
    bytes: size_t,
    beta: *const u8,
    y_desc: *const Slot<Tensor>,
    y: u64,
) -> Status {
    const CALL: &str = "cudnnConvolutionForward";
    call!("cudnnConvolutionForward");
    let run = || {
        let stream = given(h, "the handle")?.stream;
        let p = Problem::read(x_desc, w_desc, conv, y_desc)?;
        let m = Memory::checked(&p, algorithm, (x, w, y), (workspace, bytes))?;
        let (alpha, beta) = (factor(alpha, p.x.ty)?, factor(beta, p.x.ty)?);
        let epilogue = Epilogue {
            alpha,
            beta,
            residual: (beta != 0.0).then(|| m.y.elements(p.y.ty)),
            bias: None,
            relu: false,
        };
        submit(CALL, stream, m.ranges(), p.flops(), move || m.run(&p, &epilogue))
    };
    status(CALL, run())
}

const RELU: c_int = 1;
const IDENTITY: c_int = 5;

/// What the fused form asks of its activation and bias beyond the convolution itself.
fn fusion(p: &Problem, algorithm: c_int, bias: &Tensor, act: &Activation) -> Checked<()> {
    if act.mode != RELU && act.mode != IDENTITY {
        return unsupported(format!("activation mode {}, neither RELU nor IDENTITY", act.mode));
    }
    if act.mode == IDENTITY && algorithm != IMPLICIT_PRECOMP_GEMM {
        return unsupported("IDENTITY works with the algorithm IMPLICIT_PRECOMP_GEMM only");
    }
    if act.propagate_nan {
        return unsupported("the activation must be CUDNN_NOT_PROPAGATE_NAN");
    }
    if bias.dims != [1, p.w.dims[0], 1, 1] || bias.strides[1] != 1 {
        return unsupported(format!(
            "a bias of {:?} with strides {:?} for {} outputs",
            bias.dims, bias.strides, p.w.dims[0]
        ));
    }
    if bias.ty != p.y.ty {
        return unsupported(format!("{:?} bias for {:?} output", bias.ty, p.y.ty));
    }
    Ok(())
}

#[no_mangle]
pub unsafe extern "C" fn cudnnConvolutionBiasActivationForward(
    h: *const Handle,
    alpha1: *const u8,
    x_desc: *const Slot<Tensor>,
    x: u64,
    w_desc: *const Slot<Filter>,
    w: u64,
    conv: *const Slot<Convolution>,
    algorithm: c_int,
    workspace: u64,
    bytes: size_t,
    alpha2: *const u8,
    z_desc: *const Slot<Tensor>,
    z: u64,
    bias_desc: *const Slot<Tensor>,
    bias: u64,
    act_desc: *const Slot<Activation>,
    y_desc: *const Slot<Tensor>,
    y: u64,
) -> Status {
    const CALL: &str = "cudnnConvolutionBiasActivationForward";
    call!("cudnnConvolutionBiasActivationForward");
    let run = || {
        let stream = given(h, "the handle")?.stream;
        let p = Problem::read(x_desc, w_desc, conv, y_desc)?;
        let m = Memory::checked(&p, algorithm, (x, w, y), (workspace, bytes))?;
        let bias_tensor = Slot::read(bias_desc, "the bias's descriptor")?;
        let act = Slot::read(act_desc, "the activation's descriptor")?;
        fusion(&p, algorithm, &bias_tensor, &act)?;
        let bias = Range::tensor("the bias", bias, &bias_tensor)?;
        m.y.apart(&[bias])?;
        let mut ranges = m.ranges();
        ranges.push(bias);
        // z and its descriptor are asked for even where alpha2 makes them count for nothing.
        let z_tensor = Slot::read(z_desc, "the residual's descriptor")?;
        if z_tensor != p.y {
            return bad("the residual's descriptor differs from the output's");
        }
        let z_range = Range::tensor("the residual", z, &z_tensor)?;
        if z != y {
            m.y.apart(&[z_range])?;
        }
        m.workspace.apart(&[bias, z_range])?;
        ranges.push(z_range);
        let (alpha, beta) = (factor(alpha1, p.x.ty)?, factor(alpha2, p.x.ty)?);
        let epilogue = Epilogue {
            alpha,
            beta,
            residual: (beta != 0.0).then(|| z_range.elements(p.y.ty)),
            bias: Some(bias.elements(p.y.ty)),
            relu: act.mode == RELU,
        };
        submit(CALL, stream, ranges, p.flops(), move || m.run(&p, &epilogue))
    };
    status(CALL, run())
}
