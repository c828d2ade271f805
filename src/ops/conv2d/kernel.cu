// A convolution is a product of the input's windows, one line each, with the filters. cuBLAS multiplies; before and after
//     conv2d_windows: for each output pixel, for each place (dy, dx) of the window:
//         line[dy, dx, :] = input[y * stride + dy - padding, x * stride + dx - padding, :], or 0 outside of the input
//     conv2d_finish:  out = activation(out + bias + residual)
// Windows are made for some output lines at a time, as all of them are nine times the input. The channels of a place are
// one stretch of memory in input and line, and moving them needs no knowledge of their dtype: a thread moves as many
// bytes as divide the stretch, up to sixteen.
#include "finish.cuh"

struct Windows {
    // A row is a place of a window; a column is one access.
    Rows places;
    const void* input;
    void* lines;
    // Of the first window, in pixels of the output of all images.
    unsigned first_pixel;
    unsigned height, width;
    unsigned out_height, out_width;
    unsigned window_height, window_width;
    unsigned stride, padding;
    unsigned unused;
};

template <typename Access>
__device__ __forceinline__ void windows(const Windows& a) {
    for_each_pack<1>(a.places, [&](unsigned place, unsigned column) {
        unsigned dx = place % a.window_width;
        unsigned dy = place / a.window_width % a.window_height;
        unsigned pixel = a.first_pixel + place / a.window_width / a.window_height;
        unsigned x = pixel % a.out_width;
        unsigned y = pixel / a.out_width % a.out_height;
        size_t image = pixel / a.out_width / a.out_height;
        // Above and left of the input these wrap around to more than its size.
        unsigned row = y * a.stride + dy - a.padding;
        unsigned input_column = x * a.stride + dx - a.padding;
        Access value = {};
        if (row < a.height && input_column < a.width) {
            size_t source = (image * a.height + row) * a.width + input_column;
            value = static_cast<const Access*>(a.input)[source * a.places.columns + column];
        }
        static_cast<Access*>(a.lines)[(size_t)place * a.places.columns + column] = value;
    });
}

extern "C" __global__ void conv2d_windows_2(const Windows argument) { windows<unsigned short>(argument); }
extern "C" __global__ void conv2d_windows_4(const Windows argument) { windows<unsigned>(argument); }
extern "C" __global__ void conv2d_windows_8(const Windows argument) { windows<uint2>(argument); }
extern "C" __global__ void conv2d_windows_16(const Windows argument) { windows<uint4>(argument); }

FOR_EACH_DTYPE(conv2d_finish, finish, Finish)

struct FinishSum {
    Finish finish;
    const void* residual;
};

template <typename T, typename Residual, unsigned N>
__device__ __forceinline__ void finish_sum_packs(const FinishSum& a) {
    const Rows& rows = a.finish.rows;
    for_each_pack<N>(rows, [&](unsigned row, unsigned column) {
        size_t at = (size_t)row * rows.columns + column;
        T* out = static_cast<T*>(a.finish.values) + at;
        float values[N], bias[N], residual[N];
        load<N>(out, values);
        load<N>(a.finish.bias + column, bias);
        load<N>(static_cast<const Residual*>(a.residual) + at, residual);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            values[i] = activate(values[i] + bias[i] + residual[i], a.finish.activation);
        }
        store<N>(out, values);
    });
}

template <typename T, typename Residual>
__device__ __forceinline__ void finish_sum(const FinishSum& a) {
    if (a.finish.rows.pack == 4) {
        finish_sum_packs<T, Residual, 4>(a);
    } else {
        finish_sum_packs<T, Residual, 1>(a);
    }
}

// Named after the dtype of the residual; the second three are for results in f32.
extern "C" __global__ void conv2d_finish_sum_f32(const FinishSum argument) { finish_sum<float, float>(argument); }
extern "C" __global__ void conv2d_finish_sum_f16(const FinishSum argument) { finish_sum<__half, __half>(argument); }
extern "C" __global__ void conv2d_finish_sum_bf16(const FinishSum argument) {
    finish_sum<__nv_bfloat16, __nv_bfloat16>(argument);
}
extern "C" __global__ void conv2d_finish_sum_to_f32_f32(const FinishSum argument) {
    finish_sum<float, float>(argument);
}
extern "C" __global__ void conv2d_finish_sum_to_f32_f16(const FinishSum argument) {
    finish_sum<float, __half>(argument);
}
extern "C" __global__ void conv2d_finish_sum_to_f32_bf16(const FinishSum argument) {
    finish_sum<float, __nv_bfloat16>(argument);
}

// The way back: each input pixel adds up its place in all windows that it lies in,
//     out[y, x, :] (+)= sum over (dy, dx) of line of window ((y + padding - dy) / stride, ...)[dy, dx, :]
// A part of the windows may be at hand; pixels then collect from several parts in turn.
struct Fold {
    // Of the input.
    Rows pixels;
    const float* lines;
    float* out;
    unsigned first_input;
    unsigned first_window;
    unsigned windows;
    // Whether `out` holds the sum of earlier parts.
    unsigned add;
    unsigned height, width;
    unsigned out_height, out_width;
    unsigned window_height, window_width;
    unsigned stride, padding;
};

template <unsigned N>
__device__ __forceinline__ void fold_packs(const Fold& a) {
    for_each_pack<N>(a.pixels, [&](unsigned row, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned pixel = a.first_input + row;
        unsigned x = pixel % a.width + a.padding;
        unsigned y = pixel / a.width % a.height + a.padding;
        unsigned image = pixel / a.width / a.height;
        float* out = a.out + (size_t)pixel * channels + channel;
        float sums[N] = {};
        if (a.add) load<N>(out, sums);
        for (unsigned dy = 0; dy < a.window_height && dy <= y; dy++) {
            unsigned out_y = (y - dy) / a.stride;
            if ((y - dy) % a.stride != 0 || out_y >= a.out_height) continue;
            for (unsigned dx = 0; dx < a.window_width && dx <= x; dx++) {
                unsigned out_x = (x - dx) / a.stride;
                if ((x - dx) % a.stride != 0 || out_x >= a.out_width) continue;
                // Windows before the first wrap around to more than their number.
                unsigned window = (image * a.out_height + out_y) * a.out_width + out_x - a.first_window;
                if (window >= a.windows) continue;
                size_t place = ((size_t)window * a.window_height + dy) * a.window_width + dx;
                float values[N];
                load<N>(a.lines + place * channels + channel, values);
#pragma unroll
                for (unsigned i = 0; i < N; i++) sums[i] += values[i];
            }
        }
        store<N>(out, sums);
    });
}

extern "C" __global__ void conv2d_fold(const Fold argument) {
    if (argument.pixels.pack == 4) {
        fold_packs<4>(argument);
    } else {
        fold_packs<1>(argument);
    }
}
