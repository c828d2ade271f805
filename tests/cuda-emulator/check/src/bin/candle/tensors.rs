//! Tensor operations.
use super::{ids, t, Run};
use candle_core::{DType, IndexOp, Result, Tensor, D};

pub fn check(r: &mut Run) {
    arithmetic(r);
    reductions_and_indexing(r);
    types(r);
    products_and_layers(r);
    random(r);
}

fn arithmetic(r: &mut Run) {
    r.same("arange", 0.0, |d| Tensor::arange(0u32, 100, d));
    r.same("empty", 0.0, |d| {
        Tensor::cat(&[Tensor::zeros((0, 5), DType::F32, d)?, t(&[2, 5], 1, d)?], 0)
    });
    r.same("zeros-ones-full", 0.0, |d| {
        Tensor::zeros((3, 5), DType::F32, d)?
            + Tensor::ones((3, 5), DType::F32, d)?
            + Tensor::full(2.5f32, (3, 5), d)?
    });
    r.same("add", 0.0, |d| t(&[37, 41], 1, d)? + t(&[37, 41], 2, d)?);
    r.same("sub-mul-div", 1e-6, |d| {
        ((t(&[9, 41], 1, d)? - t(&[9, 41], 2, d)?)? * t(&[9, 41], 3, d)?)?
            / (t(&[9, 41], 4, d)?.sqr()? + 1.0)?
    });
    r.same("broadcast", 0.0, |d| {
        t(&[4, 1, 6], 1, d)?.broadcast_add(&t(&[5, 1], 2, d)?)?.broadcast_mul(&t(&[6], 3, d)?)
    });
    r.same("strided", 0.0, |d| t(&[8, 9, 10], 1, d)?.transpose(0, 2)? + t(&[10, 9, 8], 2, d)?);
    r.same("narrow-contiguous", 0.0, |d| {
        t(&[8, 9, 10], 1, d)?.narrow(1, 2, 5)?.transpose(1, 2)?.contiguous()
    });
    r.same("affine", 1e-6, |d| t(&[100], 1, d)?.affine(1.5, -0.25));
    r.same("maximum-minimum", 0.0, |d| {
        t(&[64], 1, d)?.maximum(&t(&[64], 2, d)?)?.minimum(&t(&[64], 3, d)?)
    });
    r.same("clamp", 0.0, |d| t(&[64], 1, d)?.clamp(-0.5f32, 0.75f32));
    for (n, f) in [
        ("exp", Tensor::exp as fn(&Tensor) -> Result<Tensor>),
        ("sin", Tensor::sin),
        ("cos", Tensor::cos),
        ("tanh", Tensor::tanh),
        ("abs", Tensor::abs),
        ("neg", Tensor::neg),
        ("sqr", Tensor::sqr),
        ("recip", Tensor::recip),
        ("gelu", Tensor::gelu),
        ("gelu_erf", Tensor::gelu_erf),
        ("erf", Tensor::erf),
        ("relu", Tensor::relu),
        ("silu", Tensor::silu),
        ("floor", Tensor::floor),
        ("ceil", Tensor::ceil),
        ("round", Tensor::round),
        ("sign", Tensor::sign),
    ] {
        r.same(&format!("unary-{n}"), 3e-6, move |d| f(&t(&[257], 7, d)?));
        r.same(&format!("unary-strided-{n}"), 3e-6, move |d| f(&t(&[16, 17], 7, d)?.t()?));
    }
    r.same("unary-log-sqrt", 1e-6, |d| (t(&[257], 7, d)?.sqr()? + 0.1)?.log()?.sqr()?.sqrt());
    r.same("elu-powf", 2e-6, |d| t(&[99], 3, d)?.elu(0.7)? + t(&[99], 4, d)?.abs()?.powf(1.7)?);
    r.same("sigmoid", 1e-6, |d| candle_nn::ops::sigmoid(&t(&[300], 3, d)?));
    r.same("softmax", 1e-6, |d| candle_nn::ops::softmax(&t(&[7, 91], 3, d)?, D::Minus1));
    r.same("softmax_last_dim", 1e-6, |d| candle_nn::ops::softmax_last_dim(&t(&[70, 91], 3, d)?));
    r.same("log_softmax", 1e-6, |d| candle_nn::ops::log_softmax(&t(&[7, 91], 3, d)?, 1));
    r.same("layer_norm", 1e-5, |d| {
        candle_nn::ops::layer_norm(&t(&[7, 96], 3, d)?, &t(&[96], 4, d)?, &t(&[96], 5, d)?, 1e-5)
    });
    r.same("rms_norm", 1e-5, |d| {
        candle_nn::ops::rms_norm(&t(&[7, 96], 3, d)?, &t(&[96], 4, d)?, 1e-5)
    });
    type Cmp = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let cmps: [(&str, Cmp); 6] = [
        ("eq", |a, b| a.eq(b)),
        ("ne", |a, b| a.ne(b)),
        ("lt", |a, b| a.lt(b)),
        ("le", |a, b| a.le(b)),
        ("gt", |a, b| a.gt(b)),
        ("ge", |a, b| a.ge(b)),
    ];
    for (n, f) in cmps {
        r.same(&format!("cmp-{n}"), 0.0, move |d| f(&ids(200, 5, 1, d)?, &ids(200, 5, 2, d)?));
    }
    r.same("where_cond", 0.0, |d| {
        t(&[50], 1, d)?.gt(&t(&[50], 2, d)?)?.where_cond(&t(&[50], 3, d)?, &t(&[50], 4, d)?)
    });
    r.same("where_cond-strided", 0.0, |d| {
        t(&[5, 8], 1, d)?.gt(0f32)?.t()?.where_cond(&t(&[8, 5], 3, d)?, &t(&[5, 8], 4, d)?.t()?)
    });
}

fn reductions_and_indexing(r: &mut Run) {
    r.same("sum_all", 1e-5, |d| t(&[1000, 7], 3, d)?.sum_all());
    for k in 0..3usize {
        r.same(&format!("sum-dim{k}"), 1e-5, move |d| t(&[33, 12, 40], 3, d)?.sum(k));
        r.same(&format!("mean-dim{k}"), 1e-5, move |d| t(&[33, 12, 40], 3, d)?.mean_keepdim(k));
        r.same(&format!("max-dim{k}"), 0.0, move |d| t(&[33, 12, 40], 3, d)?.max(k));
        r.same(&format!("min-dim{k}"), 0.0, move |d| t(&[33, 12, 40], 3, d)?.min(k));
        r.same(&format!("argmax-dim{k}"), 0.0, move |d| t(&[9, 5, 11], 3, d)?.argmax(k));
        r.same(&format!("argmin-dim{k}"), 0.0, move |d| t(&[9, 5, 11], 3, d)?.argmin(k));
    }
    r.same("max-wide", 0.0, |d| t(&[5, 3000], 3, d)?.max(1));
    r.same("cumsum", 1e-4, |d| t(&[6, 50], 3, d)?.cumsum(1));
    r.same("index_select0", 0.0, |d| t(&[20, 6], 1, d)?.index_select(&ids(33, 20, 5, d)?, 0));
    r.same("index_select1", 0.0, |d| t(&[6, 20, 3], 1, d)?.index_select(&ids(33, 20, 5, d)?, 1));
    r.same("index_select-i64", 0.0, |d| {
        t(&[20, 6], 1, d)?.index_select(&ids(33, 20, 5, d)?.to_dtype(DType::I64)?, 0)
    });
    r.same("gather", 0.0, |d| {
        t(&[9, 20], 1, d)?.gather(&ids(9 * 4, 20, 5, d)?.reshape((9, 4))?, 1)
    });
    r.same("index_add", 1e-5, |d| {
        t(&[7, 6], 1, d)?.index_add(&ids(33, 7, 5, d)?, &t(&[33, 6], 2, d)?, 0)
    });
    r.same("scatter_add", 1e-5, |d| {
        t(&[9, 20], 1, d)?.scatter_add(
            &ids(9 * 40, 20, 5, d)?.reshape((9, 40))?,
            &t(&[9, 40], 2, d)?,
            1,
        )
    });
    r.same("scatter", 0.0, |d| {
        let index = Tensor::arange(0u32, 20, d)?
            .affine(-1.0, 19.0)
            .or_else(|_| Tensor::new((0..20u32).rev().collect::<Vec<_>>().as_slice(), d))?;
        t(&[4, 20], 1, d)?.scatter(
            &index.reshape((1, 20))?.broadcast_as((4, 20))?.contiguous()?,
            &t(&[4, 20], 2, d)?,
            1,
        )
    });
    r.same("slice_scatter", 0.0, |d| t(&[9, 5], 1, d)?.slice_scatter(&t(&[3, 5], 2, d)?, 0, 4));
    r.same("cat0", 0.0, |d| Tensor::cat(&[t(&[3, 5], 1, d)?, t(&[4, 5], 2, d)?], 0));
    r.same("cat1", 0.0, |d| {
        Tensor::cat(&[t(&[5, 3, 2], 1, d)?, t(&[5, 4, 2], 2, d)?, t(&[5, 1, 2], 3, d)?], 1)
    });
    r.same("stack", 0.0, |d| Tensor::stack(&[t(&[3, 5], 1, d)?, t(&[3, 5], 2, d)?], 1));
    r.same("pad-flip", 0.0, |d| t(&[3, 5], 1, d)?.pad_with_zeros(1, 2, 3)?.flip(&[1]));
    r.same("i-slice", 0.0, |d| t(&[6, 7, 8], 1, d)?.i((2..5, 3, ..))?.contiguous());
    r.same("embedding", 0.0, |d| t(&[20, 8], 1, d)?.embedding(&ids(11, 20, 3, d)?));
}

fn types(r: &mut Run) {
    for ty in [DType::U8, DType::U32, DType::I64, DType::F16, DType::BF16, DType::F64] {
        // The device's affine is one fused operation, so the f32 before may differ in the last bit.
        let cast = if ty == DType::F64 { 3e-7 } else { 0.0 };
        r.same(&format!("to_dtype-{ty:?}"), cast, move |d| {
            t(&[100], 1, d)?.abs()?.affine(20.0, 0.3)?.to_dtype(ty)
        });
        r.same(&format!("from_dtype-{ty:?}"), cast, move |d| {
            t(&[100], 1, d)?.abs()?.affine(20.0, 0.3)?.to_dtype(ty)?.to_dtype(DType::F32)
        });
        let tol = match ty {
            DType::BF16 => 1.6e-2,
            DType::F16 => 2e-3,
            _ => 0.0,
        };
        r.same(&format!("arith-{ty:?}"), tol, move |d| {
            let a = t(&[100], 1, d)?.abs()?.affine(3.0, 1.0)?.to_dtype(ty)?;
            let b = t(&[100], 2, d)?.abs()?.affine(3.0, 1.0)?.to_dtype(ty)?;
            ((&a + &b)? * &a)? / &b
        });
    }
    for ty in [DType::F16, DType::BF16, DType::F64] {
        r.same(&format!("unary-exp-{ty:?}"), 1e-2, move |d| t(&[100], 1, d)?.to_dtype(ty)?.exp());
        r.same(&format!("sum-{ty:?}"), 4e-2, move |d| t(&[30, 40], 1, d)?.to_dtype(ty)?.sum(1));
        r.same(&format!("matmul-{ty:?}"), 2e-2, move |d| {
            t(&[6, 30], 1, d)?.to_dtype(ty)?.matmul(&t(&[30, 8], 2, d)?.to_dtype(ty)?)
        });
    }
}

fn products_and_layers(r: &mut Run) {
    r.same("matmul", 1e-5, |d| t(&[37, 64], 1, d)?.matmul(&t(&[64, 29], 2, d)?));
    r.same("matmul-big", 1e-4, |d| t(&[200, 300], 1, d)?.matmul(&t(&[300, 250], 2, d)?));
    r.same("matmul-batched", 1e-5, |d| t(&[3, 4, 17, 20], 1, d)?.matmul(&t(&[3, 4, 20, 9], 2, d)?));
    r.same("matmul-transposed", 1e-5, |d| {
        t(&[20, 17], 1, d)?.t()?.matmul(&t(&[9, 20], 2, d)?.t()?)
    });
    r.same("linear", 1e-5, |d| {
        candle_nn::Module::forward(
            &candle_nn::Linear::new(t(&[9, 20], 1, d)?, Some(t(&[9], 2, d)?)),
            &t(&[5, 20], 3, d)?,
        )
    });
    // Convolutions, pooling, scaling.
    for (stride, pad, groups, dil, k) in [
        (1, 0, 1, 1, 1),
        (1, 1, 1, 1, 3),
        (2, 1, 1, 1, 3),
        (2, 3, 1, 1, 7),
        (1, 1, 2, 1, 3),
        (1, 2, 1, 2, 3),
        (2, 0, 1, 1, 1),
    ] {
        r.same(&format!("conv2d-k{k}-s{stride}-p{pad}-g{groups}-d{dil}"), 1e-5, move |d| {
            t(&[2, 4, 19, 23], 1, d)?.conv2d(
                &t(&[6, 4 / groups, k, k], 2, d)?,
                pad,
                stride,
                dil,
                groups,
            )
        });
    }
    r.same("conv1d", 1e-5, |d| t(&[2, 4, 19], 1, d)?.conv1d(&t(&[6, 4, 3], 2, d)?, 1, 2, 1, 1));
    r.same("conv_transpose2d", 1e-5, |d| {
        t(&[2, 4, 9, 11], 1, d)?.conv_transpose2d(&t(&[4, 5, 2, 2], 2, d)?, 0, 0, 2, 1)
    });
    r.same("conv_transpose2d-k3", 1e-5, |d| {
        t(&[1, 4, 9, 11], 1, d)?.conv_transpose2d(&t(&[4, 5, 3, 3], 2, d)?, 1, 1, 2, 1)
    });
    r.same("max_pool2d", 0.0, |d| t(&[2, 3, 18, 22], 1, d)?.max_pool2d_with_stride(3, 2));
    r.same("avg_pool2d", 1e-6, |d| t(&[2, 3, 18, 22], 1, d)?.avg_pool2d(2));
    r.same("upsample_nearest2d", 0.0, |d| t(&[2, 3, 9, 11], 1, d)?.upsample_nearest2d(18, 25));
    r.same("batch-norm-by-hand", 1e-6, |d| {
        t(&[2, 5, 8, 9], 1, d)?
            .broadcast_mul(&t(&[1, 5, 1, 1], 2, d)?)?
            .broadcast_add(&t(&[1, 5, 1, 1], 3, d)?)?
            .relu()
    });
    // Sorting.
    for n in [5usize, 91, 1000, 1024] {
        r.same(&format!("sort-{n}"), 0.0, move |d| Ok(t(&[3, n], 5, d)?.sort_last_dim(true)?.0));
        r.same(&format!("sort-desc-{n}"), 0.0, move |d| {
            Ok(t(&[3, n], 5, d)?.sort_last_dim(false)?.0)
        });
    }
    r.same("arg_sort", 0.0, |d| {
        let v: Vec<f32> = (0..700u32).map(|k| (k * 397 % 701) as f32).collect();
        Tensor::new(v.as_slice(), d)?.arg_sort_last_dim(false)
    });
}

/// Random numbers: range and moments.
fn random(r: &mut Run) {
    if r.wanted("rand") {
        let f = || -> Result<f64> {
            let u = Tensor::rand(0f32, 1f32, 20000, &r.gpu)?.to_vec1::<f32>()?;
            let m = u.iter().sum::<f32>() / 20000.0;
            let bad = u.iter().any(|&x| !(0.0..=1.0).contains(&x));
            Ok(if bad { 1.0 } else { (m - 0.5).abs() as f64 })
        };
        let v = f().map_err(|e| e.to_string());
        r.note("rand", v, 0.02);
        let f = || -> Result<f64> {
            let u = Tensor::randn(1f32, 2f32, 20001, &r.gpu)?.to_vec1::<f32>()?;
            let m = u.iter().sum::<f32>() / 20001.0;
            let s = (u.iter().map(|x| (x - m) * (x - m)).sum::<f32>() / 20001.0).sqrt();
            Ok(((m - 1.0).abs() + (s - 2.0).abs()) as f64)
        };
        let v = f().map_err(|e| e.to_string());
        r.note("randn", v, 0.1);
    }
}
