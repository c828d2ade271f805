// cuBLAS multiplies each input pixel with the filters of all places of the window. Of a window of 2x2 places, then, a
// thread per pack of output channels, for each input pixel and place (dy, dx):
//     out[2y + dy, 2x + dx, :] = activation(product[y, x, dy, dx, :] + bias)
// The products can't be written to where they belong at once, as a line of products makes parts of two output lines.
// Windows of 4x4 places overlap: then, a thread per pack of output channels, for each output pixel:
//     out[Y, X, :] = activation(bias + sum of product[y, x, dy, dx, :] with 2y + dy - 1 = Y and 2x + dx - 1 = X)
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

struct AddUp {
    // Of the output.
    Rows pixels;
    // [N, H, W, 4, 4, O]
    const float* products;
    const float* bias;
    void* out;
    // H and W.
    unsigned height;
    unsigned width;
    unsigned activation;
    unsigned unused;
};

template <typename T, unsigned N>
__device__ __forceinline__ void add_up_packs(const AddUp& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % (2 * a.width);
        unsigned y = pixel / (2 * a.width) % (2 * a.height);
        size_t image = pixel / (2 * a.width) / (2 * a.height);
        float sums[N];
        load<N>(a.bias + channel, sums);
        // The last of the two lines whose windows reach this one; the first has the later line of its window here.
        unsigned last_row = (y + 1) / 2, last_column = (x + 1) / 2;
        for (unsigned i = 2; i-- > 0;) {
            if (last_row < i || last_row - i >= a.height) continue;
            unsigned dy = (y + 1) % 2 + 2 * i;
            for (unsigned j = 2; j-- > 0;) {
                if (last_column < j || last_column - j >= a.width) continue;
                unsigned dx = (x + 1) % 2 + 2 * j;
                size_t source = (image * a.height + last_row - i) * a.width + last_column - j;
                float values[N];
                load<N>(a.products + (source * 16 + dy * 4 + dx) * channels + channel, values);
#pragma unroll
                for (unsigned k = 0; k < N; k++) sums[k] += values[k];
            }
        }
#pragma unroll
        for (unsigned k = 0; k < N; k++) sums[k] = activate(sums[k], a.activation);
        store<N>(static_cast<T*>(a.out) + (size_t)pixel * channels + channel, sums);
    });
}

template <typename T>
__device__ __forceinline__ void add_up(const AddUp& a) {
    if (a.pixels.pack == 4) {
        add_up_packs<T, 4>(a);
    } else {
        add_up_packs<T, 1>(a);
    }
}

FOR_EACH_DTYPE(conv_transpose2d_add_up, add_up, AddUp)

// The way back: the gradient's pixels in the order of the products, zero outside of the image.
struct Collect {
    // A row is a place of the window of an input pixel.
    Rows places;
    const float* gradient;
    float* lines;
    unsigned first_pixel;
    // W and H.
    unsigned width;
    unsigned height;
    // Of the window.
    unsigned side;
};

template <unsigned N>
__device__ __forceinline__ void collect_packs(const Collect& a) {
    for_each_pack<N>(a.places, [&](unsigned place, unsigned channel) {
        unsigned channels = a.places.columns;
        unsigned pixel = a.first_pixel + place / (a.side * a.side);
        unsigned padding = a.side / 2 - 1;
        // Above and left of the image, these are huge.
        unsigned y = 2 * (pixel / a.width % a.height) + place / a.side % a.side - padding;
        unsigned x = 2 * (pixel % a.width) + place % a.side - padding;
        size_t image = pixel / a.width / a.height;
        float values[N] = {};
        if (y < 2 * a.height && x < 2 * a.width) {
            size_t source = (image * 2 * a.height + y) * (2 * a.width) + x;
            load<N>(a.gradient + source * channels + channel, values);
        }
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
