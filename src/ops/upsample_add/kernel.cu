// A thread per pack of channels of a fine pixel:
//     out = lateral + coarse[floor(y * h/H), floor(x * w/W)]
// The ratios come as arguments, so that they are those of the other devices to the last bit.
#include "rows.cuh"
#include "values.cuh"

struct UpsampleAdd {
    Rows pixels;
    const void* coarse;
    const void* lateral;
    void* out;
    unsigned height, width;
    unsigned coarse_height, coarse_width;
    float row_ratio, column_ratio;
};

__device__ __forceinline__ unsigned nearest(unsigned index, float ratio, unsigned coarse) {
    return min((unsigned)floorf((float)index * ratio), coarse - 1);
}

template <typename T, unsigned N>
__device__ __forceinline__ void add_packs(const UpsampleAdd& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.width;
        unsigned y = pixel / a.width % a.height;
        size_t image = pixel / a.width / a.height;
        unsigned row = nearest(y, a.row_ratio, a.coarse_height);
        unsigned column = nearest(x, a.column_ratio, a.coarse_width);
        size_t source = (image * a.coarse_height + row) * a.coarse_width + column;
        size_t at = (size_t)pixel * channels + channel;
        float fine[N], coarse[N];
        load<N>(static_cast<const T*>(a.lateral) + at, fine);
        load<N>(static_cast<const T*>(a.coarse) + source * channels + channel, coarse);
#pragma unroll
        for (unsigned i = 0; i < N; i++) fine[i] += coarse[i];
        store<N>(static_cast<T*>(a.out) + at, fine);
    });
}

template <typename T>
__device__ __forceinline__ void add(const UpsampleAdd& a) {
    if (a.pixels.pack == 4) {
        add_packs<T, 4>(a);
    } else {
        add_packs<T, 1>(a);
    }
}

FOR_EACH_DTYPE(upsample_add, add, UpsampleAdd)

// The way back: each coarse value adds up the gradients of the fine pixels that it went to.
struct Collect {
    // Of the coarse map.
    Rows pixels;
    const float* gradient;
    float* out;
    unsigned height, width;
    unsigned coarse_height, coarse_width;
    float row_ratio, column_ratio;
};

// The first fine index whose nearest coarse one is at least `index`.
__device__ __forceinline__ unsigned first_of(unsigned index, float ratio, unsigned coarse, unsigned fine) {
    // The quotient is off by less than two.
    float guess = (float)index / ratio - 2.f;
    unsigned first = guess > 0.f ? (unsigned)guess : 0;
    while (first < fine && nearest(first, ratio, coarse) < index) first++;
    return first;
}

template <unsigned N>
__device__ __forceinline__ void collect_packs(const Collect& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.coarse_width;
        unsigned y = pixel / a.coarse_width % a.coarse_height;
        size_t image = pixel / a.coarse_width / a.coarse_height;
        unsigned first_row = first_of(y, a.row_ratio, a.coarse_height, a.height);
        unsigned first_column = first_of(x, a.column_ratio, a.coarse_width, a.width);
        float sums[N] = {};
        for (unsigned row = first_row; row < a.height; row++) {
            if (nearest(row, a.row_ratio, a.coarse_height) != y) break;
            for (unsigned column = first_column; column < a.width; column++) {
                if (nearest(column, a.column_ratio, a.coarse_width) != x) break;
                float values[N];
                load<N>(a.gradient + ((image * a.height + row) * a.width + column) * channels + channel, values);
#pragma unroll
                for (unsigned i = 0; i < N; i++) sums[i] += values[i];
            }
        }
        store<N>(a.out + (size_t)pixel * channels + channel, sums);
    });
}

extern "C" __global__ void upsample_add_collect(const Collect argument) {
    if (argument.pixels.pack == 4) {
        collect_packs<4>(argument);
    } else {
        collect_packs<1>(argument);
    }
}
