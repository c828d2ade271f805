// Normalisation by the statistics of the batch, and its gradients. A thread per value, or per part of the rows and channel
// where sums are made; what is one number per channel is computed once per channel, in f64.
//
// Rows of slots that are not filled are never read: whatever lies there, their results are zero.
#include "activation.cuh"

// Values [rows, channels], the rows being those of `slots` slots of each image.
struct Batch {
    const float* input;
    // Filled slots of each image, or null: all are.
    const unsigned* counts;
    unsigned long long rows;
    unsigned channels;
    unsigned images;
    unsigned slots;
    // Rows of a slot.
    unsigned plane;
    // Rows that a thread adds up, and how many times that is all.
    unsigned part;
    unsigned parts;
};

struct Norm {
    Batch batch;
    const float* residual;
    float* out;
    // [channels] each.
    const float* weight;
    const float* bias;
    float* mean;
    float* variance;
    // [parts, channels]
    float* sums;
    // [2, channels]: out = activation(input * factors[0] + factors[1] + residual)
    float* factors;
    double eps;
    unsigned activation;
    unsigned unused;
};

struct Back {
    Batch batch;
    const float* gradient;
    // [channels] each.
    const float* weight;
    const float* mean;
    const float* variance;
    // [2, parts, channels]
    float* sums;
    // [3, channels]: of_input = gradient * factors[0] + (input - mean) * factors[1] + factors[2]
    float* factors;
    float* of_weight;
    float* of_bias;
    float* of_input;
    double eps;
};

struct Move {
    Batch batch;
    // [channels] each.
    const float* mean;
    const float* variance;
    float* running_mean;
    float* running_variance;
    float keep;
    float share;
};

__device__ __forceinline__ unsigned long long place() {
    return (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ bool is_filled(const Batch& a, unsigned long long row) {
    if (!a.counts) return true;
    unsigned slot = (unsigned)(row / a.plane);
    return slot % a.slots < a.counts[slot / a.slots];
}

__device__ __forceinline__ unsigned long long filled_rows(const Batch& a) {
    if (!a.counts) return a.rows;
    unsigned long long slots = 0;
    for (unsigned image = 0; image < a.images; image++) slots += min(a.counts[image], a.slots);
    return slots * a.plane;
}

// Calls `work` with the place of the channel's value in each filled row of a part, in order.
template <typename Work>
__device__ __forceinline__ void for_part(const Batch& a, unsigned long long part, unsigned long long channel, Work work) {
    unsigned long long row = part * a.part;
    unsigned long long end = row + a.part < a.rows ? row + a.part : a.rows;
    while (row < end) {
        // The rows of a slot are all filled or none of them is.
        unsigned long long next = a.counts ? (row / a.plane + 1) * a.plane : end;
        next = next < end ? next : end;
        if (is_filled(a, row)) {
            for (; row < next; row++) work(row * a.channels + channel);
        }
        row = next;
    }
}

// The sum of what the parts of a channel have been summed to.
__device__ __forceinline__ float total(const Batch& a, const float* sums, unsigned long long channel) {
    float sum = 0.f;
    for (unsigned long long part = 0; part < a.parts; part++) sum += sums[part * a.channels + channel];
    return sum;
}

// Without rows, zero.
__device__ __forceinline__ float mean_of(float sum, unsigned long long rows) {
    return rows == 0 ? 0.f : (float)((double)sum / (double)rows);
}

__device__ __forceinline__ double inverse_deviation(float variance, double eps) {
    return 1. / sqrt((double)variance + eps);
}

// Sums of the input, of each part of the rows.
extern "C" __global__ void batch_norm_sums(const Norm a) {
    unsigned long long i = place();
    if (i >= (unsigned long long)a.batch.parts * a.batch.channels) return;
    float sum = 0.f;
    for_part(a.batch, i / a.batch.channels, i % a.batch.channels, [&](unsigned long long at) { sum += a.batch.input[at]; });
    a.sums[i] = sum;
}

extern "C" __global__ void batch_norm_means(const Norm a) {
    unsigned long long channel = place();
    if (channel >= a.batch.channels) return;
    a.mean[channel] = mean_of(total(a.batch, a.sums, channel), filled_rows(a.batch));
}

// Sums of the squares of input - mean, of each part of the rows.
extern "C" __global__ void batch_norm_squares(const Norm a) {
    unsigned long long i = place();
    if (i >= (unsigned long long)a.batch.parts * a.batch.channels) return;
    unsigned long long channel = i % a.batch.channels;
    float mean = a.mean[channel], sum = 0.f;
    for_part(a.batch, i / a.batch.channels, channel, [&](unsigned long long at) {
        float difference = a.batch.input[at] - mean;
        sum += difference * difference;
    });
    a.sums[i] = sum;
}

// Variances, and the factors that follow from them.
extern "C" __global__ void batch_norm_factors(const Norm a) {
    unsigned long long channel = place();
    if (channel >= a.batch.channels) return;
    float variance = mean_of(total(a.batch, a.sums, channel), filled_rows(a.batch));
    float scale = (float)(inverse_deviation(variance, a.eps) * (double)a.weight[channel]);
    a.variance[channel] = variance;
    a.factors[channel] = scale;
    a.factors[a.batch.channels + channel] = a.bias[channel] - a.mean[channel] * scale;
}

extern "C" __global__ void batch_norm_apply(const Norm a) {
    unsigned long long i = place();
    if (i >= a.batch.rows * a.batch.channels) return;
    unsigned long long row = i / a.batch.channels, channel = i % a.batch.channels;
    if (!is_filled(a.batch, row)) {
        a.out[i] = 0.f;
        return;
    }
    float value = a.batch.input[i] * a.factors[channel] + a.factors[a.batch.channels + channel];
    if (a.residual) value += a.residual[i];
    a.out[i] = activate(value, a.activation);
}

// Sums of (input - mean) * gradient, then those of gradients, of each part of the rows.
extern "C" __global__ void batch_norm_products(const Back a) {
    unsigned long long i = place();
    unsigned long long n = (unsigned long long)a.batch.parts * a.batch.channels;
    if (i >= n) return;
    unsigned long long channel = i % a.batch.channels;
    float mean = a.mean[channel], products = 0.f, sum = 0.f;
    for_part(a.batch, i / a.batch.channels, channel, [&](unsigned long long at) {
        float gradient = a.gradient[at];
        products += (a.batch.input[at] - mean) * gradient;
        sum += gradient;
    });
    a.sums[i] = products;
    a.sums[n + i] = sum;
}

// The gradients of weight and bias, and the factors that follow from them.
extern "C" __global__ void batch_norm_back_factors(const Back a) {
    unsigned long long channel = place();
    if (channel >= a.batch.channels) return;
    unsigned long long channels = a.batch.channels, rows = filled_rows(a.batch);
    float inverse = (float)inverse_deviation(a.variance[channel], a.eps);
    float of_weight = total(a.batch, a.sums, channel) * inverse;
    float of_bias = total(a.batch, a.sums + a.batch.parts * channels, channel);
    float scale = a.weight[channel] * inverse;
    a.of_weight[channel] = of_weight;
    a.of_bias[channel] = of_bias;
    a.factors[channel] = scale;
    a.factors[channels + channel] = rows == 0 ? 0.f : -scale * of_weight * inverse / (float)rows;
    a.factors[2 * channels + channel] = rows == 0 ? 0.f : -scale * of_bias / (float)rows;
}

extern "C" __global__ void batch_norm_back(const Back a) {
    unsigned long long i = place();
    if (i >= a.batch.rows * a.batch.channels) return;
    unsigned long long row = i / a.batch.channels, channel = i % a.batch.channels;
    const float* factors = a.factors + channel;
    a.of_input[i] = is_filled(a.batch, row)
                        ? a.gradient[i] * factors[0] + (a.batch.input[i] - a.mean[channel]) * factors[a.batch.channels] +
                              factors[2 * (unsigned long long)a.batch.channels]
                        : 0.f;
}

// The values of filled rows, and zero in the others.
extern "C" __global__ void batch_norm_filled(const Batch a, float* out) {
    unsigned long long i = place();
    if (i < a.rows * a.channels) out[i] = is_filled(a, i / a.channels) ? a.input[i] : 0.f;
}

// running = keep * running + share * batch's, the variance being the unbiased one. A single value has none.
extern "C" __global__ void batch_norm_move(const Move a) {
    unsigned long long channel = place(), rows = filled_rows(a.batch);
    if (channel >= a.batch.channels || rows <= 1) return;
    float unbiased = (float)((double)rows / (double)(rows - 1));
    a.running_mean[channel] = a.running_mean[channel] * a.keep + a.mean[channel] * a.share;
    a.running_variance[channel] = a.running_variance[channel] * a.keep + a.variance[channel] * unbiased * a.share;
}
