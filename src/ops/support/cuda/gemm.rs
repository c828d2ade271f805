//! Matrix products through cuBLAS.

use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::cuda_backend::{WrapErr, gemm_reduced_precision_f32};
use candle_core::{CudaDevice, DType};

use super::traffic::{Event, count};
use crate::error::Result;

/// A product of the rows of two matrices, as a layer computes it: `out[r, c] = Σ left[r, t] · right[c, t]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    /// Rows of `left` and `out`.
    pub rows: usize,
    /// Values that each sum runs over, side by side in `left` and `right`.
    pub terms: usize,
    /// Rows of `right`, columns of `out`.
    pub columns: usize,
    /// Of `left` and `right`.
    pub dtype: DType,
    /// Of `out`.
    pub output: DType,
}

impl Product {
    /// Multiplies matrices at these addresses. Sums are in f32 whatever the dtypes are; products of f32 are exact unless
    /// candle's `set_gemm_reduced_precision_f32` allows TF32.
    pub fn run(self, device: &CudaDevice, left: u64, right: u64, out: u64) -> Result<()> {
        let Self { rows, terms, columns, dtype, output } = self;
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let compute = if dtype == DType::F32 && gemm_reduced_precision_f32() {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F
        };
        count(Event::Product);
        let (one, zero) = (1f32, 0f32);
        let blas = device.cublas_handle();
        // SAFETY: handle and addresses are live, and the matrices have the sizes given. cuBLAS counts along columns: to
        // it, each matrix is its own transpose, so `outᵀ = right · leftᵀ` is asked for, of a transposed `rightᵀ`.
        unsafe {
            result::gemm_ex(
                *blas.handle(),
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                columns as i32,
                rows as i32,
                terms as i32,
                (&raw const one).cast(),
                right as *const _,
                number(dtype),
                terms as i32,
                left as *const _,
                number(dtype),
                terms as i32,
                (&raw const zero).cast(),
                out as *mut _,
                number(output),
                columns as i32,
                compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .w()?;
        Ok(())
    }
}

/// cuBLAS's name of a compute dtype.
fn number(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}
