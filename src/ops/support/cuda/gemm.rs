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

/// A matrix of some neighboring columns of another one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    /// Of the first.
    pub address: u64,
    /// Values from a row to the next: all columns of the other.
    pub line: usize,
}

/// Whether a matrix has a row for each of its own indices, or for each term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// The terms of a sum are side by side.
    Own,
    /// They are one below the other.
    Terms,
}

impl Product {
    /// Multiplies matrices at these addresses. Sums are in f32 whatever the dtypes are; products of f32 are exact unless
    /// candle's `set_gemm_reduced_precision_f32` allows TF32.
    pub fn run(self, device: &CudaDevice, left: u64, right: u64, out: u64) -> Result<()> {
        self.run_into(device, left, right, Columns { address: out, line: self.columns })
    }

    /// The same, to some columns of a matrix.
    pub fn run_into(self, device: &CudaDevice, left: u64, right: u64, out: Columns) -> Result<()> {
        let left = Columns { address: left, line: self.terms };
        self.multiply(device, (left, Rows::Own), (right, Rows::Own), out, 0.0)
    }

    /// `out[r, c] = Σ left[r, t] · right[t, c]`, as the gradient of a layer's input is computed.
    pub fn run_plain(self, device: &CudaDevice, left: u64, right: u64, out: u64) -> Result<()> {
        self.run_plain_from(device, Columns { address: left, line: self.terms }, right, out)
    }

    /// The same, from some columns of a matrix.
    pub fn run_plain_from(
        self,
        device: &CudaDevice,
        left: Columns,
        right: u64,
        out: u64,
    ) -> Result<()> {
        let out = Columns { address: out, line: self.columns };
        self.multiply(device, (left, Rows::Own), (right, Rows::Terms), out, 0.0)
    }

    /// `out[r, c] = keep · out[r, c] + Σ left[t, r] · right[t, c]`, as the gradient of a layer's weight is computed.
    pub fn run_outer(
        self,
        device: &CudaDevice,
        left: u64,
        right: u64,
        out: u64,
        keep: f32,
    ) -> Result<()> {
        let left = Columns { address: left, line: self.rows };
        self.run_outer_from(device, left, right, out, keep)
    }

    /// The same, from some columns of a matrix.
    pub fn run_outer_from(
        self,
        device: &CudaDevice,
        left: Columns,
        right: u64,
        out: u64,
        keep: f32,
    ) -> Result<()> {
        let out = Columns { address: out, line: self.columns };
        self.multiply(device, (left, Rows::Terms), (right, Rows::Terms), out, keep)
    }

    fn multiply(
        self,
        device: &CudaDevice,
        (left, left_rows): (Columns, Rows),
        (right, right_rows): (u64, Rows),
        out: Columns,
        keep: f32,
    ) -> Result<()> {
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
        let one = 1f32;
        let (transposed, plain) =
            (sys::cublasOperation_t::CUBLAS_OP_T, sys::cublasOperation_t::CUBLAS_OP_N);
        // What turns a matrix to what cuBLAS multiplies, and the length of a line in memory.
        let left_turn = match left_rows {
            Rows::Own => plain,
            Rows::Terms => transposed,
        };
        let (right_line, right_turn) = match right_rows {
            Rows::Own => (terms, transposed),
            Rows::Terms => (columns, plain),
        };
        let blas = device.cublas_handle();
        // SAFETY: handle and addresses are live, and the matrices have the sizes given. cuBLAS counts along columns: to
        // it, each matrix is its own transpose, so `outᵀ = right · leftᵀ` is asked for.
        unsafe {
            result::gemm_ex(
                *blas.handle(),
                right_turn,
                left_turn,
                columns as i32,
                rows as i32,
                terms as i32,
                (&raw const one).cast(),
                right as *const _,
                number(dtype),
                right_line.max(1) as i32,
                left.address as *const _,
                number(dtype),
                left.line.max(1) as i32,
                (&raw const keep).cast(),
                out.address as *mut _,
                number(output),
                out.line as i32,
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
