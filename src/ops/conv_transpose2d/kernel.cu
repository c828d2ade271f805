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
    unsigned relu;
    unsigned unused;
};

template <typename T, unsigned N>
__device__ __forceinline__ void spread_packs(const Spread& a) {
    for_each_pack<N>(a.places, [&](unsigned place, unsigned channel) {
        unsigned channels = a.places.columns;
        unsigned pixel = a.first_pixel + place / 4;
        unsigned dy = place / 2 % 2;
        unsigned dx = place % 2;
        // Image and line are one index: each input line makes two output lines.
        size_t line = (size_t)(pixel / a.width) * 2 + dy;
        size_t target = line * (2 * a.width) + pixel % a.width * 2 + dx;
        float values[N], bias[N];
        load<N>(static_cast<const T*>(a.products) + (size_t)place * channels + channel, values);
        load<N>(a.bias + channel, bias);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float value = values[i] + bias[i];
            values[i] = a.relu ? relu(value) : value;
        }
        store<N>(static_cast<T*>(a.out) + target * channels + channel, values);
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
