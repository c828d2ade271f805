// A thread per pack of channels of a pixel:
//     out = input * scale[image]
#include "rows.cuh"
#include "values.cuh"

struct Scale {
    Rows pixels;
    const void* input;
    // [images, channels]
    const void* scale;
    void* out;
    unsigned image_pixels;
    unsigned unused;
};

template <typename T, unsigned N>
__device__ __forceinline__ void scale_packs(const Scale& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        size_t channels = a.pixels.columns;
        size_t at = pixel * channels + channel;
        float values[N], scale[N];
        load<N>(static_cast<const T*>(a.input) + at, values);
        load<N>(static_cast<const T*>(a.scale) + pixel / a.image_pixels * channels + channel, scale);
#pragma unroll
        for (unsigned i = 0; i < N; i++) values[i] *= scale[i];
        store<N>(static_cast<T*>(a.out) + at, values);
    });
}

template <typename T>
__device__ __forceinline__ void scale(const Scale& a) {
    if (a.pixels.pack == 4) {
        scale_packs<T, 4>(a);
    } else {
        scale_packs<T, 1>(a);
    }
}

FOR_EACH_DTYPE(scale_channels, scale, Scale)

// The gradient of the scale: the sum of input * gradient over an image's pixels. A thread adds up a part of them, another
// one the parts, so that sums have one order.
struct OfScale {
    // [images, pixels, channels]
    const float* input;
    const float* gradient;
    // [images, parts, channels]
    float* sums;
    // [images, channels]
    float* out;
    unsigned images, pixels, channels;
    unsigned part, parts;
    unsigned unused;
};

extern "C" __global__ void scale_channels_sums(const OfScale a) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (unsigned long long)a.images * a.parts * a.channels) return;
    unsigned first = i / a.channels % a.parts * a.part;
    unsigned end = first + a.part < a.pixels ? first + a.part : a.pixels;
    unsigned long long image = i / a.channels / a.parts;
    unsigned long long start = image * a.pixels * a.channels + i % a.channels;
    float sum = 0.f;
    for (unsigned pixel = first; pixel < end; pixel++) {
        unsigned long long at = start + (unsigned long long)pixel * a.channels;
        sum += a.input[at] * a.gradient[at];
    }
    a.sums[i] = sum;
}

extern "C" __global__ void scale_channels_totals(const OfScale a) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (unsigned long long)a.images * a.channels) return;
    const float* sums = a.sums + i / a.channels * a.parts * a.channels + i % a.channels;
    float sum = 0.f;
    for (unsigned part = 0; part < a.parts; part++) sum += sums[(unsigned long long)part * a.channels];
    a.out[i] = sum;
}
