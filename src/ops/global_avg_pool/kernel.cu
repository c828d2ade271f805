// The mean of each channel over the pixels of an image. A thread adds up a part of the pixels, another one the parts, so
// that sums have one order and the threads of a launch are many.
#include "values.cuh"

struct Pool {
    // [images, pixels, channels]; on the way back the gradient [images, channels].
    const void* input;
    // [images, parts, channels]
    float* sums;
    // [images, channels]; on the way back [images, pixels, channels].
    void* out;
    unsigned images, pixels, channels;
    // Pixels that a thread adds up, and how many times that is all.
    unsigned part, parts;
    unsigned unused;
};

__device__ __forceinline__ unsigned long long place() {
    return (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
}

template <typename T>
__device__ __forceinline__ void sums(const Pool& a) {
    unsigned long long i = place();
    if (i >= (unsigned long long)a.images * a.parts * a.channels) return;
    unsigned channel = i % a.channels;
    unsigned first = i / a.channels % a.parts * a.part;
    unsigned long long image = i / a.channels / a.parts;
    unsigned end = first + a.part < a.pixels ? first + a.part : a.pixels;
    const T* input = static_cast<const T*>(a.input) + image * a.pixels * a.channels + channel;
    float sum = 0.f;
    for (unsigned pixel = first; pixel < end; pixel++) sum += to_float(input[(unsigned long long)pixel * a.channels]);
    a.sums[i] = sum;
}

template <typename T>
__device__ __forceinline__ void means(const Pool& a) {
    unsigned long long i = place();
    if (i >= (unsigned long long)a.images * a.channels) return;
    const float* sums = a.sums + i / a.channels * a.parts * a.channels + i % a.channels;
    float sum = 0.f;
    for (unsigned part = 0; part < a.parts; part++) sum += sums[(unsigned long long)part * a.channels];
    from_float(sum / (float)a.pixels, static_cast<T*>(a.out)[i]);
}

FOR_EACH_DTYPE(global_avg_pool_sums, sums, Pool)
FOR_EACH_DTYPE(global_avg_pool_means, means, Pool)

extern "C" __global__ void global_avg_pool_back(const Pool a) {
    unsigned long long i = place();
    if (i >= (unsigned long long)a.images * a.pixels * a.channels) return;
    unsigned long long image = i / a.channels / a.pixels;
    float gradient = static_cast<const float*>(a.input)[image * a.channels + i % a.channels];
    static_cast<float*>(a.out)[i] = gradient * (1.f / (float)a.pixels);
}
