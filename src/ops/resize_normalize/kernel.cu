// A thread per pixel of an image's canvas:
//     beyond the resized size: 0
//     at    = max((y + 1/2) * input / output - 1/2, 0)
//     value = (1 - fraction) * pixel[floor(at)] + fraction * pixel[floor(at) + 1], in x, then in y
// with pixels normalised as they are read. A byte is divided anew each time instead of looked up: the division hides
// behind the access that brought the byte.
#include "values.cuh"

struct Canvas {
    const void* pixels;
    void* out;
    unsigned height, width;
    unsigned resized_height, resized_width;
    unsigned padded_height, padded_width;
    float mean[3];
    float std[3];
};

// Interleaved bytes.
struct Bytes {
    __device__ static void read(const Canvas& a, unsigned row, unsigned column, float (&rgb)[3]) {
        const unsigned char* pixel = static_cast<const unsigned char*>(a.pixels) + ((size_t)row * a.width + column) * 3;
#pragma unroll
        for (unsigned c = 0; c < 3; c++) rgb[c] = ((float)pixel[c] / 255.f - a.mean[c]) / a.std[c];
    }
};

// Planes of floats.
struct Planes {
    __device__ static void read(const Canvas& a, unsigned row, unsigned column, float (&rgb)[3]) {
        const float* pixel = static_cast<const float*>(a.pixels) + (size_t)row * a.width + column;
#pragma unroll
        for (unsigned c = 0; c < 3; c++) {
            rgb[c] = (pixel[(size_t)c * a.height * a.width] - a.mean[c]) / a.std[c];
        }
    }
};

struct Tap {
    unsigned low, high;
    float fraction;
};

// The position is rounded once, as on the CPU.
__device__ __forceinline__ Tap tap(unsigned index, unsigned input, unsigned output) {
    if (input == output) return {index, index, 0.f};
    float step = (float)input / (float)output;
    float at = fmaxf(fmaf(step, (float)index + 0.5f, -0.5f), 0.f);
    unsigned low = min((unsigned)at, input - 1);
    float fraction = fminf(fmaxf(at - (float)low, 0.f), 1.f);
    return {low, min(low + 1, input - 1), fraction};
}

__device__ __forceinline__ void mix(float (&a)[3], const float (&b)[3], float fraction) {
#pragma unroll
    for (unsigned c = 0; c < 3; c++) a[c] = (1.f - fraction) * a[c] + fraction * b[c];
}

template <typename Pixels>
__device__ __forceinline__ void across(const Canvas& a, unsigned row, Tap columns, float (&rgb)[3]) {
    float right[3];
    Pixels::read(a, row, columns.low, rgb);
    Pixels::read(a, row, columns.high, right);
    mix(rgb, right, columns.fraction);
}

template <typename Pixels, typename T>
__device__ __forceinline__ void resize(const Canvas& a) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= a.padded_width) return;
    for (unsigned y = blockIdx.y; y < a.padded_height; y += gridDim.y) {
        float rgb[3] = {};
        if (y < a.resized_height && x < a.resized_width) {
            Tap rows = tap(y, a.height, a.resized_height);
            Tap columns = tap(x, a.width, a.resized_width);
            float below[3];
            across<Pixels>(a, rows.low, columns, rgb);
            across<Pixels>(a, rows.high, columns, below);
            mix(rgb, below, rows.fraction);
        }
        T* out = static_cast<T*>(a.out) + ((size_t)y * a.padded_width + x) * 3;
#pragma unroll
        for (unsigned c = 0; c < 3; c++) from_float(rgb[c], out[c]);
    }
}

template <typename T>
__device__ __forceinline__ void bytes(const Canvas& a) {
    resize<Bytes, T>(a);
}

template <typename T>
__device__ __forceinline__ void planes(const Canvas& a) {
    resize<Planes, T>(a);
}

FOR_EACH_DTYPE(resize_normalize_bytes, bytes, Canvas)
FOR_EACH_DTYPE(resize_normalize_planes, planes, Canvas)
