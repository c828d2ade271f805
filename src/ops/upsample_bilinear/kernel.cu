// A thread per pack of channels of an output pixel, which mixes the nearest input pixel of each axis with its neighbour on
// the other side:
//     out[2y] = 3/4 input[y] + 1/4 input[y - 1], out[2y + 1] = 3/4 input[y] + 1/4 input[y + 1], per axis
// Beyond the border, pixels are those of the border. Rows are mixed first, then columns, as on the CPU.
#include "rows.cuh"
#include "values.cuh"

#define NEAR 0.75f
#define FAR 0.25f

struct Upsample {
    // Of what is written.
    Rows pixels;
    const float* source;
    float* out;
    // H and W of the input.
    unsigned height, width;
};

struct Pair {
    unsigned near, far;
};

__device__ __forceinline__ Pair sources(unsigned index, unsigned n) {
    unsigned near = index / 2;
    unsigned far = index % 2 == 1 ? near + 1 : near > 0 ? near - 1 : 0;
    return {near, min(far, n - 1)};
}

template <unsigned N>
__device__ __forceinline__ void mix(const float* near, const float* far, float* mixed) {
    float a[N], b[N];
    load<N>(near, a);
    load<N>(far, b);
#pragma unroll
    for (unsigned i = 0; i < N; i++) mixed[i] = NEAR * a[i] + FAR * b[i];
}

template <unsigned N>
__device__ __forceinline__ void upsample_packs(const Upsample& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % (2 * a.width);
        unsigned y = pixel / (2 * a.width) % (2 * a.height);
        size_t image = pixel / (2 * a.width) / (2 * a.height);
        Pair rows = sources(y, a.height);
        Pair columns = sources(x, a.width);
        auto at = [&](unsigned row, unsigned column) {
            return a.source + ((image * a.height + row) * a.width + column) * channels + channel;
        };
        float near[N], far[N];
        mix<N>(at(rows.near, columns.near), at(rows.far, columns.near), near);
        mix<N>(at(rows.near, columns.far), at(rows.far, columns.far), far);
#pragma unroll
        for (unsigned i = 0; i < N; i++) near[i] = NEAR * near[i] + FAR * far[i];
        store<N>(a.out + (size_t)pixel * channels + channel, near);
    });
}

extern "C" __global__ void upsample_bilinear(const Upsample argument) {
    if (argument.pixels.pack == 4) {
        upsample_packs<4>(argument);
    } else {
        upsample_packs<1>(argument);
    }
}

// The way back: an input pixel adds up what the four output pixels of each axis had of it. At a border, one of them had
// it twice.
struct Readers {
    unsigned index[4];
};

__device__ __forceinline__ Readers readers(unsigned index, unsigned n) {
    unsigned first = 2 * index, last = 2 * index + 1;
    return {{index == 0 ? first : first - 1, first, last, index + 1 == n ? last : last + 1}};
}

__device__ __forceinline__ float share(unsigned reader) {
    return reader == 1 || reader == 2 ? NEAR : FAR;
}

template <unsigned N>
__device__ __forceinline__ void collect_packs(const Upsample& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.width;
        unsigned y = pixel / a.width % a.height;
        size_t image = pixel / a.width / a.height;
        Readers rows = readers(y, a.height);
        Readers columns = readers(x, a.width);
        float sums[N] = {};
#pragma unroll
        for (unsigned column = 0; column < 4; column++) {
            float of_column[N] = {};
#pragma unroll
            for (unsigned row = 0; row < 4; row++) {
                size_t source = (image * 2 * a.height + rows.index[row]) * (2 * a.width) + columns.index[column];
                float values[N];
                load<N>(a.source + source * channels + channel, values);
#pragma unroll
                for (unsigned i = 0; i < N; i++) of_column[i] += share(row) * values[i];
            }
#pragma unroll
            for (unsigned i = 0; i < N; i++) sums[i] += share(column) * of_column[i];
        }
        store<N>(a.out + (size_t)pixel * channels + channel, sums);
    });
}

extern "C" __global__ void upsample_bilinear_collect(const Upsample argument) {
    if (argument.pixels.pack == 4) {
        collect_packs<4>(argument);
    } else {
        collect_packs<1>(argument);
    }
}
