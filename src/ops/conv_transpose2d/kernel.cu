// cuBLAS multiplies each input pixel with the filters of all four places of the window. Then, a thread per pack of output
// channels, for each input pixel and place (dy, dx):
//     out[2y + dy, 2x + dx, :] = activation(product[y, x, dy, dx, :] + bias)
// The products can't be written to where they belong at once, as a line of products makes parts of two output lines.
#include "finish.cuh"

struct Spread {
    // A row is a place of the window of an input pixel.
    Rows places;
    const void* products;
    const float* bias;
    void* out;
    // Of the first input pixel, in those of all images.
    unsigned first_pixel;
    unsigned width;
    unsigned activation;
    unsigned unused;
};

// First channel of a place of the window in the output: line 2y + dy, column 2x + dx.
__device__ __forceinline__ size_t target_of(unsigned first_pixel, unsigned width, unsigned channels, unsigned place) {
    unsigned pixel = first_pixel + place / 4;
    unsigned dy = place / 2 % 2;
    unsigned dx = place % 2;
    // Image and line are one index: each input line makes two output lines.
    size_t line = (size_t)(pixel / width) * 2 + dy;
    return (line * (2 * width) + pixel % width * 2 + dx) * channels;
}

template <typename T, unsigned N>
__device__ __forceinline__ void spread_packs(const Spread& a) {
    for_each_pack<N>(a.places, [&](unsigned place, unsigned channel) {
        unsigned channels = a.places.columns;
        size_t target = target_of(a.first_pixel, a.width, channels, place);
        float values[N], bias[N];
        load<N>(static_cast<const T*>(a.products) + (size_t)place * channels + channel, values);
        load<N>(a.bias + channel, bias);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            values[i] = activate(values[i] + bias[i], a.activation);
        }
        store<N>(static_cast<T*>(a.out) + target + channel, values);
    });
}

template <typename T>
__device__ __forceinline__ void spread(const Spread& a) {
    if (a.places.pack == 4) {
        spread_packs<T, 4>(a);
    } else {
        spread_packs<T, 1>(a);
    }
}

FOR_EACH_DTYPE(conv_transpose2d, spread, Spread)

// The way back: the gradient's pixels in the order of the products.
struct Collect {
    Rows places;
    const float* gradient;
    float* lines;
    unsigned first_pixel;
    unsigned width;
};

template <unsigned N>
__device__ __forceinline__ void collect_packs(const Collect& a) {
    for_each_pack<N>(a.places, [&](unsigned place, unsigned channel) {
        unsigned channels = a.places.columns;
        float values[N];
        load<N>(a.gradient + target_of(a.first_pixel, a.width, channels, place) + channel, values);
        store<N>(a.lines + (size_t)place * channels + channel, values);
    });
}

extern "C" __global__ void conv_transpose2d_collect(const Collect argument) {
    if (argument.places.pack == 4) {
        collect_packs<4>(argument);
    } else {
        collect_packs<1>(argument);
    }
}
