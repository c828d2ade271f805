// A thread per pack of channels of an output pixel:
//     largest = -inf
//     for each pixel of the window that lies inside of the input: raise largest to it; NaN wins over every number
// Neighbouring threads have neighbouring channels, so that every access is to one stretch of memory. Each input value is
// read by up to four windows of a 3x3 pool of stride 2; all but the first time it comes from a cache.
#include "rows.cuh"
#include "values.cuh"

struct Pool {
    Rows pixels;
    const void* input;
    void* out;
    unsigned height, width;
    unsigned out_height, out_width;
    unsigned kernel, stride, padding;
    unsigned unused;
};

struct Window {
    unsigned start, end;
};

template <typename Pooling>
__device__ __forceinline__ Window window(const Pooling& a, unsigned position, unsigned size) {
    unsigned start = position * a.stride;
    unsigned end = start + a.kernel;
    return {start > a.padding ? start - a.padding : 0, min(end > a.padding ? end - a.padding : 0, size)};
}

template <typename T, unsigned N>
__device__ __forceinline__ void pool_packs(const Pool& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.out_width;
        unsigned y = pixel / a.out_width % a.out_height;
        size_t image = pixel / a.out_width / a.out_height;
        const T* input = static_cast<const T*>(a.input) + image * a.height * a.width * channels + channel;
        Window rows = window(a, y, a.height);
        Window columns = window(a, x, a.width);
        float largest[N];
#pragma unroll
        for (unsigned i = 0; i < N; i++) largest[i] = -INFINITY;
        for (unsigned row = rows.start; row < rows.end; row++) {
            for (unsigned column = columns.start; column < columns.end; column++) {
                float values[N];
                load<N>(input + ((size_t)row * a.width + column) * channels, values);
#pragma unroll
                for (unsigned i = 0; i < N; i++) {
                    if (values[i] > largest[i] || isnan(values[i])) largest[i] = values[i];
                }
            }
        }
        store<N>(static_cast<T*>(a.out) + (size_t)pixel * channels + channel, largest);
    });
}

template <typename T>
__device__ __forceinline__ void pool(const Pool& a) {
    if (a.pixels.pack == 4) {
        pool_packs<T, 4>(a);
    } else {
        pool_packs<T, 1>(a);
    }
}

FOR_EACH_DTYPE(max_pool2d, pool, Pool)

// The way back, in two launches. The first finds the place of the first of each window's largest values, by the rule
// above; the second lets each input value collect the gradients of the windows that it won, in their order.
struct PoolBack {
    // Of the output, then of the input.
    Rows pixels;
    const float* input;
    const float* gradient;
    // row * W + column, one per output value.
    unsigned* winners;
    float* out;
    unsigned height, width;
    unsigned out_height, out_width;
    unsigned kernel, stride, padding;
    unsigned unused;
};

extern "C" __global__ void max_pool2d_winners(const PoolBack a) {
    for_each_pack<1>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.out_width;
        unsigned y = pixel / a.out_width % a.out_height;
        size_t image = pixel / a.out_width / a.out_height;
        const float* input = a.input + image * a.height * a.width * channels + channel;
        Window rows = window(a, y, a.height);
        Window columns = window(a, x, a.width);
        float largest = -INFINITY;
        unsigned winner = rows.start * a.width + columns.start;
        for (unsigned row = rows.start; row < rows.end; row++) {
            for (unsigned column = columns.start; column < columns.end; column++) {
                unsigned place = row * a.width + column;
                float value = input[(size_t)place * channels];
                if (value > largest || isnan(value)) {
                    largest = value;
                    winner = place;
                }
            }
        }
        a.winners[(size_t)pixel * channels + channel] = winner;
    });
}

// Output positions whose windows hold an input position.
__device__ __forceinline__ Window windows_over(const PoolBack& a, unsigned position, unsigned outputs) {
    unsigned end = (position + a.padding) / a.stride + 1;
    unsigned reach = position + a.padding + 1;
    unsigned start = reach > a.kernel ? (reach - a.kernel + a.stride - 1) / a.stride : 0;
    return {start, min(end, outputs)};
}

extern "C" __global__ void max_pool2d_collect(const PoolBack a) {
    for_each_pack<1>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.width;
        unsigned y = pixel / a.width % a.height;
        size_t image = pixel / a.width / a.height;
        Window rows = windows_over(a, y, a.out_height);
        Window columns = windows_over(a, x, a.out_width);
        float sum = 0.f;
        for (unsigned row = rows.start; row < rows.end; row++) {
            for (unsigned column = columns.start; column < columns.end; column++) {
                size_t place = ((image * a.out_height + row) * a.out_width + column) * channels + channel;
                if (a.winners[place] == y * a.width + x) sum += a.gradient[place];
            }
        }
        a.out[(size_t)pixel * channels + channel] = sum;
    });
}
