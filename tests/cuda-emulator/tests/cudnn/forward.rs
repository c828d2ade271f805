//! The forward pass.
use libc::c_void;

use super::api::*;
use super::case::*;
use super::common::*;

#[test]
fn forward_follows_the_definition() {
    let _session = session();
    for (ty, format) in [
        (Ty::F32, NHWC),
        (Ty::F16, NHWC),
        (Ty::BF16, NHWC),
        (Ty::F32, NCHW),
        (Ty::F16, NCHW),
        (Ty::F64, NCHW),
    ] {
        for (x, w, shape) in shapes() {
            let case = Case::new(ty, format, x, w, shape);
            let what = format!("{ty:?}, format {format}, {x:?}, {w:?}, {shape:?}");
            let old = case.y.values.clone();
            let sums = case.expected();
            let reach = (w[1] * w[2] * w[3]) as f64;
            ok(case.forward(PRECOMP_GEMM, 1., 0.));
            close(&case.y.fetch(), &sums, ty.tolerance() * reach.sqrt(), &what);
            let case = Case::new(ty, format, x, w, shape);
            ok(case.forward(PRECOMP_GEMM, 0.5, -2.));
            let want: Vec<f64> = sums.iter().zip(&old).map(|(s, o)| 0.5 * s - 2. * o).collect();
            close(&case.y.fetch(), &want, ty.tolerance() * reach.sqrt(), &what);
        }
    }
    assert_eq!(count("conv.count"), 96);
}

#[test]
fn an_input_may_have_strides() {
    let _session = session();
    // The middle columns of a wider picture, rows and columns exchanged.
    let case = Case::new(Ty::F32, NCHW, [2, 3, 6, 5], [4, 3, 3, 3], PLAIN);
    let [n, c, h, w] = case.x.dims;
    let (wide, skip) = (9usize, 2usize);
    let mut values = vec![f32::NAN; n * c * wide * h];
    for (i, v) in case.x.values.iter().enumerate() {
        let (column, row, plane) = (i % w, i / w % h, i / (w * h));
        values[(plane * wide + skip + column) * h + row] = *v as f32;
    }
    let d = made(cudnnCreateTensorDescriptor);
    let [sn, sc] = [c * wide * h, wide * h].map(|v| v as i32);
    ok(cudnnSetTensor4dDescriptorEx(d, 0, 2, 3, 6, 5, sn, sc, 1, h as i32));
    let x = upload(&values) + (skip * h * 4) as u64;
    let (space, bytes) = case.workspace(PRECOMP_GEMM);
    let (one, zero) = (1f32, 0f32);
    let (filter, y) = (case.w.filter(), case.y.tensor());
    ok(cudnnConvolutionForward(
        case.handle,
        &one as *const f32 as *const c_void,
        d,
        x,
        filter,
        case.w.at,
        case.conv,
        PRECOMP_GEMM,
        space,
        bytes,
        &zero as *const f32 as *const c_void,
        y,
        case.y.at,
    ));
    close(&case.y.fetch(), &case.expected(), 1e-5, "strided");
}

#[test]
fn the_first_recommendation_works() {
    let _session = session();
    let recommended = |case: &Case| {
        let mut all = [Perf::default(); 8];
        let mut given = 0;
        let (x, w, y) = (case.x.tensor(), case.w.filter(), case.y.tensor());
        ok(cudnnGetConvolutionForwardAlgorithm_v7(
            case.handle,
            x,
            w,
            case.conv,
            y,
            8,
            &mut given,
            all.as_mut_ptr(),
        ));
        assert_eq!(given, 8);
        all
    };
    let nhwc = Case::new(Ty::F16, NHWC, [1, 8, 6, 5], [8, 8, 3, 3], PLAIN);
    let all = recommended(&nhwc);
    assert_eq!((all[0].algorithm, all[0].status), (PRECOMP_GEMM, 0));
    assert!(all[1..].iter().all(|p| p.status == NOT_SUPPORTED), "NHWC leaves one");
    let nchw = Case::new(Ty::F32, NCHW, [1, 8, 6, 5], [8, 8, 3, 3], PLAIN);
    for perf in recommended(&nchw).iter().filter(|p| p.status == 0) {
        assert_eq!(nchw.workspace(perf.algorithm).1, perf.memory);
        ok(nchw.forward(perf.algorithm, 1., 0.));
        close(&nchw.y.fetch(), &nchw.expected(), 1e-5, "algorithm");
    }
}
