// Passes over whole tensors of f32 that the gradients of several ops and the optimisers need. Each value is computed by one
// thread, and sums have a fixed order: results are the same from run to run.
#include "activation.cuh"

__device__ __forceinline__ unsigned long long place() {
    return (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
}

extern "C" __global__ void support_through_activation(const float* known, const float* gradient, float* out,
                                                      unsigned long long n, unsigned activation) {
    unsigned long long i = place();
    if (i < n) out[i] = through_activation(known[i], gradient[i], activation);
}

extern "C" __global__ void support_activate(const float* input, float* out, unsigned long long n, unsigned activation) {
    unsigned long long i = place();
    if (i < n) out[i] = activate(input[i], activation);
}

struct Permute {
    const float* values;
    // One per first axis of the result, or null.
    const float* scale;
    float* out;
    // Of the values, along each axis of the result.
    unsigned long long strides[3];
    unsigned dims[3];
    unsigned unused;
};

// out[i, j, k] = scale[i] * values[i * strides[0] + j * strides[1] + k * strides[2]]
extern "C" __global__ void support_permute(const Permute a) {
    unsigned long long at = place();
    unsigned long long plane = (unsigned long long)a.dims[1] * a.dims[2];
    if (at >= a.dims[0] * plane) return;
    unsigned long long i = at / plane, j = at % plane / a.dims[2], k = at % a.dims[2];
    float value = a.values[i * a.strides[0] + j * a.strides[1] + k * a.strides[2]];
    a.out[at] = a.scale ? a.scale[i] * value : value;
}

// A thread per part of the rows and column.
extern "C" __global__ void support_column_sums(const float* values, float* sums, unsigned long long rows, unsigned columns,
                                               unsigned part, unsigned long long n) {
    unsigned long long i = place();
    if (i >= n) return;
    unsigned long long column = i % columns, first = i / columns * part;
    unsigned long long end = first + part < rows ? first + part : rows;
    float sum = 0.f;
    for (unsigned long long row = first; row < end; row++) sum += values[row * columns + column];
    sums[i] = sum;
}

// Thread i of `threads` sums the squares of every `threads`-th value.
extern "C" __global__ void support_squares(const float* values, unsigned long long n, double* sums, unsigned threads) {
    unsigned long long thread = place();
    if (thread >= threads) return;
    double sum = 0.;
    for (unsigned long long i = thread; i < n; i += threads) sum += (double)values[i] * (double)values[i];
    sums[thread] = sum;
}

// One block; the sum of all, in a fixed order.
extern "C" __global__ void support_total(const double* sums, unsigned n, double* total) {
    __shared__ double parts[256];
    double sum = 0.;
    for (unsigned i = threadIdx.x; i < n; i += 256) sum += sums[i];
    parts[threadIdx.x] = sum;
    for (unsigned width = 128; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) parts[threadIdx.x] += parts[threadIdx.x + width];
    }
    if (threadIdx.x == 0) *total = parts[0];
}

// Judges an update: in `verdict`, whether it is made (1 or 0), what its gradients are multiplied by, how long they are
// together, and its losses.
struct Judgement {
    // Sums of the squares of each gradient.
    const double* squares;
    const float* losses;
    // The verdict on the update before, or null.
    const double* before;
    double* verdict;
    // What the gradients are to be multiplied by anyway.
    double factor;
    // The most that they may measure together.
    double limit;
    unsigned gradients;
    unsigned losses_count;
};

// One block; the sum of all squares in a fixed order.
extern "C" __global__ void support_judge(const Judgement a) {
    __shared__ double parts[256];
    double sum = 0.;
    for (unsigned i = threadIdx.x; i < a.gradients; i += 256) sum += a.squares[i];
    parts[threadIdx.x] = sum;
    for (unsigned width = 128; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) parts[threadIdx.x] += parts[threadIdx.x + width];
    }
    if (threadIdx.x > 0) return;
    double norm = sqrt(parts[0]) * fabs(a.factor);
    // NaN and infinities differ from themselves less themselves.
    bool is_finite = norm - norm == 0.;
    bool goes_on = is_finite && !(a.before && a.before[0] == 0.);
    for (unsigned i = 0; i < a.losses_count; i++) {
        float loss = a.losses[i];
        goes_on = goes_on && loss - loss == 0.f;
        a.verdict[3 + i] = loss;
    }
    double shorter = a.limit / (norm + 1e-6);
    a.verdict[0] = goes_on ? 1. : 0.;
    a.verdict[1] = is_finite && shorter < 1. ? a.factor * shorter : a.factor;
    a.verdict[2] = norm;
}

// What an update depends on that the device alone knows; null where it depends on nothing.
struct Condition {
    // Whether it is made.
    const double* goes_on;
    // What its gradient is multiplied by.
    const double* factor;
};

__device__ __forceinline__ bool holds(const Condition& condition) {
    return !condition.goes_on || *condition.goes_on != 0.;
}

__device__ __forceinline__ float scaled(double by, const Condition& condition) {
    return (float)(condition.factor ? by * *condition.factor : by);
}

// x = keep * x + by_a * a + by_b * b; a is the gradient, if one is
extern "C" __global__ void support_combine(float* x, const float* a, const float* b, float keep, double by_a, float by_b,
                                           unsigned long long n, const Condition condition) {
    unsigned long long i = place();
    if (i < n && holds(condition)) x[i] = keep * x[i] + scaled(by_a, condition) * a[i] + by_b * b[i];
}

// x = keep * x + by * a; a is the gradient, if one is
extern "C" __global__ void support_blend(float* x, const float* a, float keep, double by, unsigned long long n,
                                         const Condition condition) {
    unsigned long long i = place();
    if (i < n && holds(condition)) x[i] = keep * x[i] + scaled(by, condition) * a[i];
}

// x = keep * x + share * (factor * a)^2; a is the gradient, if one is
extern "C" __global__ void support_average_squares(float* x, const float* a, float keep, float share, double by,
                                                   unsigned long long n, const Condition condition) {
    unsigned long long i = place();
    if (i >= n || !holds(condition)) return;
    float factor = scaled(by, condition);
    x[i] = keep * x[i] + share * (factor * a[i]) * (factor * a[i]);
}

// x = keep * x - rate * mean / (sqrt(squares * correction) + eps)
extern "C" __global__ void support_step_by_moments(float* x, const float* mean, const float* squares, float keep,
                                                   float rate, float correction, float eps, unsigned long long n,
                                                   const Condition condition) {
    unsigned long long i = place();
    if (i < n && holds(condition)) {
        x[i] = keep * x[i] - rate * mean[i] / (sqrtf(squares[i] * correction) + eps);
    }
}

// x = before, unless the update is made
extern "C" __global__ void support_restore(float* x, const float* before, unsigned long long n,
                                           const Condition condition) {
    unsigned long long i = place();
    if (i < n && !holds(condition)) x[i] = before[i];
}
