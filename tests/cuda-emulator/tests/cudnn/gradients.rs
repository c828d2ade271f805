//! Gradients to input, filter and bias.
use libc::c_void;

use super::api::*;
use super::case::*;
use super::common::*;

#[test]
fn gradients_follow_the_definition() {
    let _session = session();
    for (ty, format) in [(Ty::F32, NHWC), (Ty::F16, NHWC), (Ty::F32, NCHW), (Ty::F64, NCHW)] {
        for (x, w, shape) in shapes() {
            let c = Case::new(ty, format, x, w, shape);
            let what = format!("{ty:?}, format {format}, {x:?}, {w:?}, {shape:?}");
            let (mut dx, mut dw) = (vec![0.; c.x.values.len()], vec![0.; c.w.values.len()]);
            let mut db = vec![0.; w[0]];
            let pixels = c.y.dims[2] * c.y.dims[3];
            c.y.values.iter().enumerate().for_each(|(i, v)| db[i / pixels % w[0]] += v);
            c.products(|at, tap, out| {
                let g = c.y.at(out);
                dx[index(c.x.dims, at)] += g * c.w.at(tap);
                dw[index(c.w.dims, tap)] += g * c.x.at(at);
            });
            let (alpha, beta) = (ty.compute().bytes(2.), ty.compute().bytes(1.));
            let (alpha, beta) = (alpha.as_ptr() as *const c_void, beta.as_ptr() as *const c_void);
            let (dxd, dyd, wd) = (c.x.tensor(), c.y.tensor(), c.w.filter());
            let (into_x, into_w) = (Data::new(ty, format, x, 21), Data::new(ty, format, w, 23));
            let into_b = Data::new(ty, format, [1, w[0], 1, 1], 25);

            let bytes = made(|s| {
                cudnnGetConvolutionBackwardDataWorkspaceSize(c.handle, wd, dyd, c.conv, dxd, 1, s)
            });
            let space = made(|p| cuMemAlloc_v2(p, bytes));
            ok(cudnnConvolutionBackwardData(
                c.handle, alpha, wd, c.w.at, dyd, c.y.at, c.conv, 1, space, bytes, beta, dxd,
                into_x.at,
            ));
            let add = |sums: &[f64], old: &[f64]| -> Vec<f64> {
                sums.iter().zip(old).map(|(s, o)| 2. * s + o).collect()
            };
            let scale = |terms: usize| 4. * ty.tolerance() * (terms as f64).sqrt();
            let want = add(&dx, &into_x.values);
            close(&into_x.fetch(), &want, scale(w[0] * w[2] * w[3]), &what);

            let bytes = made(|s| {
                cudnnGetConvolutionBackwardFilterWorkspaceSize(c.handle, dxd, dyd, c.conv, wd, 1, s)
            });
            let space = made(|p| cuMemAlloc_v2(p, bytes));
            ok(cudnnConvolutionBackwardFilter(
                c.handle, alpha, dxd, c.x.at, dyd, c.y.at, c.conv, 1, space, bytes, beta, wd,
                into_w.at,
            ));
            close(&into_w.fetch(), &add(&dw, &into_w.values), scale(x[0] * pixels), &what);

            let dbd = into_b.tensor();
            ok(cudnnConvolutionBackwardBias(c.handle, alpha, dyd, c.y.at, beta, dbd, into_b.at));
            close(&into_b.fetch(), &add(&db, &into_b.values), scale(x[0] * pixels), &what);
        }
    }
}
