// Normalisation of groups of channels within each image, and its gradients. A block per image and group adds up what its
// values have in common, in a fixed order; then a thread per value, or pack of values, uses it.
#include "activation.cuh"
#include "rows.cuh"
#include "values.cuh"

const unsigned THREADS = 256;

// Values [images, rows, channels]; the channels are those of the groups, one after another.
struct Batch {
    const void* input;
    unsigned images;
    unsigned rows;
    unsigned channels;
    unsigned groups;
};

struct Norm {
    Batch batch;
    // Of the output.
    Rows pixels;
    void* out;
    // [channels]
    const float* weight;
    const float* bias;
    // [images, groups]
    float* mean;
    // 1 / sqrt(variance + eps)
    float* inverse;
    double eps;
    unsigned activation;
    unsigned unused;
};

struct Back {
    Batch batch;
    const float* gradient;
    const float* weight;
    // [images, groups]
    const float* mean;
    const float* inverse;
    // [2, images, channels]: of (input - mean) * gradient, and of gradients.
    float* sums;
    // [2, images, groups]: of_input = gradient * weight * inverse + (input - mean) * factors[0] + factors[1]
    float* factors;
    float* of_weight;
    float* of_bias;
    float* of_input;
};

// The sum over all threads of a block, for all of them.
__device__ __forceinline__ double total_of_block(double value, double* parts) {
    parts[threadIdx.x] = value;
    for (unsigned width = THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) parts[threadIdx.x] += parts[threadIdx.x + width];
    }
    __syncthreads();
    double total = parts[0];
    __syncthreads();
    return total;
}

template <typename T>
__device__ __forceinline__ void statistics(const Norm& a) {
    __shared__ double parts[THREADS];
    unsigned image = blockIdx.x / a.batch.groups, group = blockIdx.x % a.batch.groups;
    unsigned of_group = a.batch.channels / a.batch.groups;
    const T* input = static_cast<const T*>(a.batch.input) + (size_t)image * a.batch.rows * a.batch.channels +
                     (size_t)group * of_group;
    unsigned long long n = (unsigned long long)a.batch.rows * of_group;
    float sum = 0.f;
    for (unsigned long long i = threadIdx.x; i < n; i += THREADS) {
        sum += to_float(input[i / of_group * a.batch.channels + i % of_group]);
    }
    double count = n == 0 ? 1. : (double)n;
    float mean = (float)(total_of_block(sum, parts) / count);
    float squares = 0.f;
    for (unsigned long long i = threadIdx.x; i < n; i += THREADS) {
        float difference = to_float(input[i / of_group * a.batch.channels + i % of_group]) - mean;
        squares += difference * difference;
    }
    double variance = total_of_block(squares, parts) / count;
    if (threadIdx.x > 0) return;
    a.mean[blockIdx.x] = mean;
    a.inverse[blockIdx.x] = (float)(1. / sqrt(variance + a.eps));
}

FOR_EACH_DTYPE(group_norm_statistics, statistics, Norm)

template <typename T, unsigned N>
__device__ __forceinline__ void apply_packs(const Norm& a) {
    unsigned of_group = a.batch.channels / a.batch.groups;
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        size_t at = (size_t)pixel * a.batch.channels + channel;
        unsigned first = pixel / a.batch.rows * a.batch.groups;
        float values[N];
        load<N>(static_cast<const T*>(a.batch.input) + at, values);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            unsigned group = first + (channel + i) / of_group;
            float scale = a.inverse[group] * a.weight[channel + i];
            values[i] = activate((values[i] - a.mean[group]) * scale + a.bias[channel + i], a.activation);
        }
        store<N>(static_cast<T*>(a.out) + at, values);
    });
}

template <typename T>
__device__ __forceinline__ void apply(const Norm& a) {
    if (a.pixels.pack == 4) {
        apply_packs<T, 4>(a);
    } else {
        apply_packs<T, 1>(a);
    }
}

FOR_EACH_DTYPE(group_norm_apply, apply, Norm)

// Sums over the rows of each image and channel, and the factors of its groups.
extern "C" __global__ void group_norm_products(const Back a) {
    __shared__ float products[THREADS], sums[THREADS];
    __shared__ double parts[THREADS];
    unsigned image = blockIdx.x / a.batch.groups, group = blockIdx.x % a.batch.groups;
    unsigned channels = a.batch.channels, of_group = channels / a.batch.groups;
    size_t start = (size_t)image * a.batch.rows * channels;
    const float* input = static_cast<const float*>(a.batch.input) + start;
    const float* gradient = a.gradient + start;
    float mean = a.mean[blockIdx.x], inverse = a.inverse[blockIdx.x];
    float* of_products = a.sums + (size_t)image * channels;
    float* of_sums = of_products + (size_t)a.batch.images * channels;
    double weighted_products = 0., weighted_sums = 0.;
    // As many channels at once as there are threads; several threads share the rows of each.
    for (unsigned first = 0; first < of_group; first += THREADS) {
        unsigned lanes = min(of_group - first, THREADS);
        unsigned lane = threadIdx.x % lanes, place = threadIdx.x / lanes, places = THREADS / lanes;
        unsigned channel = group * of_group + first + lane;
        float product = 0.f, sum = 0.f;
        if (place < places) {
            for (unsigned row = place; row < a.batch.rows; row += places) {
                size_t at = (size_t)row * channels + channel;
                product += (input[at] - mean) * gradient[at];
                sum += gradient[at];
            }
        }
        products[threadIdx.x] = product;
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x < lanes) {
            double total_product = 0., total_sum = 0.;
            for (unsigned i = 0; i < places; i++) {
                total_product += products[i * lanes + lane];
                total_sum += sums[i * lanes + lane];
            }
            of_products[channel] = (float)total_product;
            of_sums[channel] = (float)total_sum;
            weighted_products += a.weight[channel] * total_product;
            weighted_sums += a.weight[channel] * total_sum;
        }
        __syncthreads();
    }
    weighted_products = total_of_block(weighted_products, parts);
    weighted_sums = total_of_block(weighted_sums, parts);
    if (threadIdx.x > 0) return;
    double n = (double)a.batch.rows * of_group, i = inverse;
    a.factors[blockIdx.x] = (float)(-i * i * i * weighted_products / n);
    a.factors[a.batch.images * a.batch.groups + blockIdx.x] = (float)(-i * weighted_sums / n);
}

// The gradients of weight and bias: sums over the images, in their order.
extern "C" __global__ void group_norm_parameters(const Back a) {
    unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned channels = a.batch.channels;
    if (channel >= channels) return;
    unsigned group = channel / (channels / a.batch.groups);
    const float* sums = a.sums + (size_t)a.batch.images * channels;
    double of_weight = 0., of_bias = 0.;
    for (unsigned image = 0; image < a.batch.images; image++) {
        of_weight += (double)a.sums[(size_t)image * channels + channel] * a.inverse[image * a.batch.groups + group];
        of_bias += sums[(size_t)image * channels + channel];
    }
    a.of_weight[channel] = (float)of_weight;
    a.of_bias[channel] = (float)of_bias;
}

extern "C" __global__ void group_norm_back(const Back a) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long image_values = (unsigned long long)a.batch.rows * a.batch.channels;
    if (i >= a.batch.images * image_values) return;
    unsigned channel = (unsigned)(i % a.batch.channels);
    unsigned group = (unsigned)(i / image_values) * a.batch.groups + channel / (a.batch.channels / a.batch.groups);
    float input = static_cast<const float*>(a.batch.input)[i];
    a.of_input[i] = a.gradient[i] * (a.inverse[group] * a.weight[channel]) + (input - a.mean[group]) * a.factors[group] +
                    a.factors[a.batch.images * a.batch.groups + group];
}
