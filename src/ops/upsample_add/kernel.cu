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
