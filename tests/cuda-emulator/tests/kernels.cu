// Kernels of the tests. After a change:
//   nvcc -ptx -arch=compute_80 -std=c++17 -O3 -o kernels.ptx kernels.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void scale_add(float *x, float a, float b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * a + b;
}
extern "C" __global__ void read_at(const float *x, float *out, long long at) { out[threadIdx.x] = x[at]; }

// Shuffles, votes, population counts: one warp.
extern "C" __global__ void warp_ops(const int *x, unsigned *out) {
    int t = threadIdx.x, v = x[t];
    unsigned all = 0xffffffffu;
    unsigned odd = __ballot_sync(all, v & 1);
    int below = __popc(odd & ((1u << t) - 1));
    int sum = v;
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(all, sum, d);
    int up = __shfl_up_sync(all, v, 3);
    int from = __shfl_sync(all, v, (t * 7) % 32);
    out[t * 8 + 0] = odd;
    out[t * 8 + 1] = below;
    out[t * 8 + 2] = sum;
    out[t * 8 + 3] = up;
    out[t * 8 + 4] = from;
    out[t * 8 + 5] = __any_sync(all, v > 1000) | __all_sync(all, v >= 0) << 1;
    out[t * 8 + 6] = __popcll((unsigned long long)odd << 20 | v) | __clz(v) << 8 | __ffs(v) << 16;
    out[t * 8 + 7] = __brev(v) ^ __byte_perm(v, odd, 0x4321) ^ __funnelshift_l(v, odd, 7);
}

// Divergent branches that meet again, with a vote inside.
extern "C" __global__ void divergent(const int *x, unsigned *out) {
    int t = threadIdx.x, v = x[t];
    unsigned r;
    if (v % 3 == 0) {
        unsigned m = __activemask();
        r = __popc(m);
        for (int i = 0; i < v % 5; i++) r = r * 3 + i;
    } else {
        r = v % 3 == 1 ? 1000 + v : 2000 - v;
    }
    out[t] = r + __reduce_add_sync(0xffffffffu, (unsigned)v);
}

// Shared-memory atomics and barriers with a reduction.
extern "C" __global__ void histogram(const unsigned *x, unsigned *bins, int *counts, int n) {
    __shared__ unsigned local[16];
    if (threadIdx.x < 16) local[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = i < n ? x[i] % 16 : 0;
    if (i < n) atomicAdd(&local[v], 1u);
    int low = __syncthreads_count(i < n && v < 4);
    int any = __syncthreads_or(i < n && v == 15);
    int all = __syncthreads_and(v < 16);
    if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
    if (threadIdx.x == 0) counts[blockIdx.x] = low * 4 + (any != 0) * 2 + (all != 0);
}

// Global atomics of every ordinary type.
extern "C" __global__ void atomics(int *i, unsigned *u, unsigned long long *l, float *f, double *d) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(i, t);
    atomicMax(i + 1, t * 37 % 101);
    atomicMin(i + 2, -(t * 53 % 97));
    atomicCAS(i + 3, 7, t + 100);
    atomicAdd(u, 3u);
    atomicOr(u + 1, 1u << t % 32);
    atomicAnd(u + 2, ~(1u << t % 5));
    atomicXor(u + 3, (unsigned)t);
    atomicExch(u + 4, 11u);
    atomicInc(u + 5, 9u);
    atomicAdd(l, (unsigned long long)t << 30);
    atomicMax(l + 1, (unsigned long long)t << 33);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
}

// Halves: packed arithmetic, fused multiply-add, conversions and atomics.
extern "C" __global__ void halves(const float *x, __half2 *h, __nv_bfloat162 *b, float *out, int n) {
    int t = threadIdx.x;
    if (t >= n) return;
    float v = x[t];
    __half2 p = __floats2half2_rn(v, -v);
    p = __hfma2(p, __float2half2_rn(1.5f), __float2half2_rn(0.25f));
    p = __hmax2(p, __float2half2_rn(-3.f));
    h[t] = p;
    __nv_bfloat162 q = __floats2bfloat162_rn(v, 2.f * v);
    b[t] = __hmul2(q, __float2bfloat162_rn(3.f));
    out[t] = __half2float(__low2half(p)) + __bfloat162float(__high2bfloat16(b[t]));
}
extern "C" __global__ void half_atomics(__half *h, __nv_bfloat16 *b, __half2 *h2) {
    atomicAdd(h, __float2half(0.5f));
    atomicAdd(b, __float2bfloat16(0.25f));
    atomicAdd(h2, __floats2half2_rn(1.f, 2.f));
}

// Vector loads, 64-bit indices, integer division and the special functions.
extern "C" __global__ void mixed(const float4 *x, float *out, long long stride, int n) {
    long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (t >= n) return;
    float4 v = __ldg(x + t * stride % n);
    float r = expf(v.x) + logf(fabsf(v.y) + 1.f) + sqrtf(fabsf(v.z)) + sinf(v.w) + tanhf(v.x);
    r += rsqrtf(v.y * v.y + 1.f) + fmaf(v.z, v.w, v.x) + floorf(v.y) + rintf(v.z) + truncf(v.w);
    r += (float)(t / 7 % 5) + __fdividef(v.x, 3.f) + fminf(v.x, v.y) + copysignf(1.f, v.z);
    out[t] = r;
}

// A grid that strides, and an early exit before a barrier.
extern "C" __global__ void strided_sum(const float *x, float *out, int n) {
    extern __shared__ float part[];
    float sum = 0.f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
