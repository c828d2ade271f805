//! Gradients of a convolution: to its input, its filter and its bias.
use super::algorithms::Pass;
use super::compute;
use super::descriptors::{Convolution, Filter, Slot, Tensor};
use super::forward::{factor, in_type, submit};
use super::problem::{Problem, Range};
use super::*;

#[no_mangle]
pub unsafe extern "C" fn cudnnConvolutionBackwardData(
    h: *const Handle,
    alpha: *const u8,
    w_desc: *const Slot<Filter>,
    w: u64,
    dy_desc: *const Slot<Tensor>,
    dy: u64,
    conv: *const Slot<Convolution>,
    algorithm: c_int,
    workspace: u64,
    bytes: size_t,
    beta: *const u8,
    dx_desc: *const Slot<Tensor>,
    dx: u64,
) -> Status {
    const CALL: &str = "cudnnConvolutionBackwardData";
    call!("cudnnConvolutionBackwardData");
    let run = || {
        let stream = given(h, "the handle")?.stream;
        let p = Problem::read(dx_desc, w_desc, conv, dy_desc)?;
        let need = Pass::BackwardData.workspace(&p, algorithm)?;
        let w = Range::filter("the filter", w, &p.w)?;
        let dy = Range::tensor("the output's gradient", dy, &p.y)?;
        let dx = Range::tensor("the input's gradient", dx, &p.x)?;
        let workspace = Range::workspace(workspace, bytes, need)?;
        dx.apart(&[w, dy, workspace])?;
        workspace.apart(&[w, dy])?;
        let ty = p.x.ty;
        let factors = (factor(alpha, ty)?, factor(beta, ty)?);
        submit(CALL, stream, vec![w, dy, dx, workspace], p.flops(), move || {
            workspace.scribble();
            let (w, dy, dx) = (w.elements(ty), dy.elements(ty), dx.elements(ty));
            in_type!(ty, backward_data(&p, w, dy, dx, factors));
        })
    };
    status(CALL, run())
}

#[no_mangle]
pub unsafe extern "C" fn cudnnConvolutionBackwardFilter(
    h: *const Handle,
    alpha: *const u8,
    x_desc: *const Slot<Tensor>,
    x: u64,
    dy_desc: *const Slot<Tensor>,
    dy: u64,
    conv: *const Slot<Convolution>,
    algorithm: c_int,
    workspace: u64,
    bytes: size_t,
    beta: *const u8,
    dw_desc: *const Slot<Filter>,
    dw: u64,
) -> Status {
    const CALL: &str = "cudnnConvolutionBackwardFilter";
    call!("cudnnConvolutionBackwardFilter");
    let run = || {
        let stream = given(h, "the handle")?.stream;
        let p = Problem::read(x_desc, dw_desc, conv, dy_desc)?;
        let need = Pass::BackwardFilter.workspace(&p, algorithm)?;
        let x = Range::tensor("the input", x, &p.x)?;
        let dy = Range::tensor("the output's gradient", dy, &p.y)?;
        let dw = Range::filter("the filter's gradient", dw, &p.w)?;
        let workspace = Range::workspace(workspace, bytes, need)?;
        dw.apart(&[x, dy, workspace])?;
        workspace.apart(&[x, dy])?;
        let ty = p.x.ty;
        let factors = (factor(alpha, ty)?, factor(beta, ty)?);
        submit(CALL, stream, vec![x, dy, dw, workspace], p.flops(), move || {
            workspace.scribble();
            let (x, dy, dw) = (x.elements(ty), dy.elements(ty), dw.elements(ty));
            in_type!(ty, backward_filter(&p, x, dy, dw, factors));
        })
    };
    status(CALL, run())
}

#[no_mangle]
pub unsafe extern "C" fn cudnnConvolutionBackwardBias(
    h: *const Handle,
    alpha: *const u8,
    dy_desc: *const Slot<Tensor>,
    dy: u64,
    beta: *const u8,
    db_desc: *const Slot<Tensor>,
    db: u64,
) -> Status {
    const CALL: &str = "cudnnConvolutionBackwardBias";
    call!("cudnnConvolutionBackwardBias");
    let run = || {
        let stream = given(h, "the handle")?.stream;
        let gradient = Slot::read(dy_desc, "the output's descriptor")?;
        let bias = Slot::read(db_desc, "the bias's descriptor")?;
        if bias.dims != [1, gradient.dims[1], 1, 1] || bias.ty != gradient.ty {
            return bad(format!("{bias:?} is no bias of {gradient:?}"));
        }
        let dy = Range::tensor("the output's gradient", dy, &gradient)?;
        let db = Range::tensor("the bias's gradient", db, &bias)?;
        db.apart(&[dy])?;
        let ty = gradient.ty;
        let factors = (factor(alpha, ty)?, factor(beta, ty)?);
        let flops = gradient.dims.iter().product::<usize>() as u64;
        submit(CALL, stream, vec![dy, db], flops, move || {
            let (dy, db) = (dy.elements(ty), db.elements(ty));
            in_type!(ty, backward_bias(&gradient, dy, db, bias.strides[1], factors));
        })
    };
    status(CALL, run())
}
