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

__device__ __forceinline__ Window window(const Pool& a, unsigned position, unsigned size) {
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
