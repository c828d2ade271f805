//! What is refused, and what a capture takes.
use libc::c_void;

use super::api::*;
use super::case::*;
use super::common::*;
use super::fused::Fused;

#[test]
fn restrictions_are_errors() {
    let _session = session();
    ok(Fused::new(Ty::F32).run());
    let run = |change: &dyn Fn(&mut Fused)| {
        let mut fused = Fused::new(Ty::F16);
        change(&mut fused);
        fused.run()
    };
    type Change<'a> = &'a dyn Fn(&mut Fused);
    let cases: [(&str, i32, Change); 12] = [
        ("sigmoid", NOT_SUPPORTED, &|f| f.mode = 0),
        ("an algorithm that is not for NHWC", NOT_SUPPORTED, &|f| f.algorithm = IMPLICIT_GEMM),
        ("an algorithm that does not exist", BAD_PARAM, &|f| f.algorithm = 8),
        ("too small a workspace", BAD_PARAM, &|f| f.space.1 -= 1),
        ("no workspace", BAD_PARAM, &|f| f.space.0 = 0),
        ("bias of another type", NOT_SUPPORTED, &|f| {
            f.bias = Data::new(Ty::F32, NHWC, [1, 6, 1, 1], 1)
        }),
        ("bias of another length", NOT_SUPPORTED, &|f| {
            f.bias = Data::new(Ty::F16, NHWC, [1, 5, 1, 1], 1)
        }),
        ("residual of another size", BAD_PARAM, &|f| {
            f.z = Data::new(Ty::F16, NHWC, [2, 6, 7, 8], 1)
        }),
        ("no residual", NULL_POINTER, &|f| f.z.at = 0),
        ("output over the input", BAD_PARAM, &|f| f.case.y.at = f.case.x.at),
        ("odd address", BAD_PARAM, &|f| f.case.x.at += 1),
        ("output of another type", NOT_SUPPORTED, &|f| {
            f.case.y = Data::new(Ty::F32, NHWC, f.case.y.dims, 1);
            f.z = Data::new(Ty::F32, NHWC, f.case.y.dims, 1);
        }),
    ];
    for (name, want, change) in cases {
        assert_eq!(run(change), want, "{name}");
    }
    // The identity goes with one algorithm only, in NCHW too.
    for (mode, algorithm, want) in [
        (RELU, IMPLICIT_GEMM, OK),
        (IDENTITY, IMPLICIT_GEMM, NOT_SUPPORTED),
        (IDENTITY, PRECOMP_GEMM, OK),
    ] {
        let case = Case::new(Ty::F32, NCHW, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
        let z = Data::new(Ty::F32, NCHW, case.y.dims, 13);
        let fused = Fused { case, z, mode, algorithm, ..Fused::new(Ty::F32) };
        assert_eq!(fused.run(), want, "mode {mode}, algorithm {algorithm}");
    }
    // Descriptors that do not fit together.
    let case = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
    let fails = |change: &dyn Fn(&mut Case), want: i32| {
        let mut other = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
        change(&mut other);
        let (x, w, y) = (other.x.tensor(), other.w.filter(), other.y.tensor());
        let got = cudnnGetConvolutionForwardWorkspaceSize(
            case.handle,
            x,
            w,
            other.conv,
            y,
            PRECOMP_GEMM,
            &mut 0,
        );
        assert_eq!(got, want);
    };
    fails(&|c| c.x.dims[1] = 4, BAD_PARAM);
    fails(&|c| c.y.dims[3] = 8, BAD_PARAM);
    fails(&|c| c.w.ty = Ty::F16, NOT_SUPPORTED);
    fails(&|c| c.x.format = NCHW, NOT_SUPPORTED);
    fails(&|c| ok(cudnnSetConvolutionGroupCount(c.conv, 5)), BAD_PARAM);
    fails(&|c| c.conv = made(cudnnCreateConvolutionDescriptor), BAD_PARAM);
    ok(cudnnDestroy(case.handle));
}

#[test]
fn memory_is_checked() {
    let _session = session();
    let case = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
    ok(case.forward(PRECOMP_GEMM, 1., 0.));
    ok(cuMemFree_v2(case.w.at));
    assert_eq!(case.forward(PRECOMP_GEMM, 1., 0.), EXECUTION_FAILED);
    assert_eq!(cuCtxSynchronize(), ILLEGAL_ADDRESS);
    reset();
    let mut short = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
    short.y.at = made(|p| cuMemAlloc_v2(p, short.y.values.len() * 4 - 4));
    assert_eq!(short.forward(PRECOMP_GEMM, 1., 0.), EXECUTION_FAILED);
    reset();
}

#[test]
fn a_convolution_can_be_captured() {
    let _session = session();
    let s = stream();
    let case = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
    ok(cudnnSetStream(case.handle, s));
    let (space, bytes) = case.workspace(PRECOMP_GEMM);
    let (x, w, y) = (case.x.tensor(), case.w.filter(), case.y.tensor());
    let old = case.y.fetch();
    reset();
    ok(cuStreamBeginCapture_v2(s, GLOBAL));
    {
        // The factors are read at the call.
        let (alpha, beta) = (2f32, 0f32);
        ok(cudnnConvolutionForward(
            case.handle,
            &alpha as *const f32 as *const c_void,
            x,
            case.x.at,
            w,
            case.w.at,
            case.conv,
            PRECOMP_GEMM,
            space,
            bytes,
            &beta as *const f32 as *const c_void,
            y,
            case.y.at,
        ));
    }
    let graph = made(|g| cuStreamEndCapture(s, g));
    assert_eq!(case.y.fetch(), old, "not yet");
    let exec = made(|e| cuGraphInstantiateWithFlags(e, graph, 0));
    ok(cuGraphLaunch(exec, s));
    let want: Vec<f64> = case.expected().iter().map(|v| 2. * v).collect();
    close(&case.y.fetch(), &want, 1e-5, "replayed");
    assert_eq!((count("conv.count"), count("graph.library")), (0, 1));
    ok(cuGraphExecDestroy(exec));
    ok(cuGraphDestroy(graph));
}
