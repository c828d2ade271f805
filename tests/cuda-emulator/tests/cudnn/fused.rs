//! Convolution, bias, residual and activation in one.
use libc::c_void;

use super::api::*;
use super::case::*;
use super::common::*;

/// The fused form, whose pieces a test may replace.
pub struct Fused {
    pub case: Case,
    pub bias: Data,
    pub z: Data,
    pub mode: i32,
    pub algorithm: i32,
    pub alpha: [f32; 2],
    pub space: (u64, usize),
}

impl Fused {
    pub fn new(ty: Ty) -> Fused {
        let case = Case::new(ty, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
        let bias = Data::new(ty, NHWC, [1, 6, 1, 1], 11);
        let z = Data::new(ty, NHWC, case.y.dims, 13);
        let space = case.workspace(PRECOMP_GEMM);
        let alpha = [1.5, -0.5];
        Fused { case, bias, z, mode: RELU, algorithm: PRECOMP_GEMM, alpha, space }
    }

    pub fn run(&self) -> i32 {
        let c = &self.case;
        let (x, w, y) = (c.x.tensor(), c.w.filter(), c.y.tensor());
        let (bias, z) = (self.bias.tensor(), self.z.tensor());
        let act = made(cudnnCreateActivationDescriptor);
        ok(cudnnSetActivationDescriptor(act, self.mode, 0, 0.));
        let (space, bytes) = self.space;
        let [a1, a2] = [0, 1].map(|i| &self.alpha[i] as *const f32 as *const c_void);
        cudnnConvolutionBiasActivationForward(
            c.handle,
            a1,
            x,
            c.x.at,
            w,
            c.w.at,
            c.conv,
            self.algorithm,
            space,
            bytes,
            a2,
            z,
            self.z.at,
            bias,
            self.bias.at,
            act,
            y,
            c.y.at,
        )
    }

    pub fn expected(&self) -> Vec<f64> {
        let pixels = self.case.y.dims[2] * self.case.y.dims[3];
        let sums = self.case.expected();
        sums.iter()
            .enumerate()
            .map(|(i, s)| {
                let bias = self.bias.values[i / pixels % self.case.y.dims[1]];
                let [a1, a2] = self.alpha.map(|v| v as f64);
                let v = a1 * s + a2 * self.z.values[i] + bias;
                if self.mode == RELU {
                    v.max(0.)
                } else {
                    v
                }
            })
            .collect()
    }
}

#[test]
fn bias_residual_and_activation_are_fused() {
    let _session = session();
    for ty in [Ty::F32, Ty::F16, Ty::BF16] {
        for mode in [RELU, IDENTITY] {
            for alpha in [[1., 1.], [1.5, -0.5], [1., 0.]] {
                let fused = Fused { mode, alpha, ..Fused::new(ty) };
                ok(fused.run());
                let what = format!("{ty:?} {mode} {alpha:?}");
                close(&fused.case.y.fetch(), &fused.expected(), 8. * ty.tolerance(), &what);
            }
        }
    }
    // The residual may be the output itself.
    let mut fused = Fused::new(Ty::F32);
    fused.z.values = fused.case.y.values.clone();
    fused.z.at = fused.case.y.at;
    ok(fused.run());
    close(&fused.case.y.fetch(), &fused.expected(), 1e-5, "in place");
}
