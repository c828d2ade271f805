// A convolution is a product of the input's windows, one line each, with the filters. cuBLAS multiplies; before and after
//     conv2d_windows: for each output pixel, for each place (dy, dx) of the window:
//         line[dy, dx, :] = input[y * stride + dy * dilation - padding, ...], or 0 outside of the input
//     conv2d_finish:  out = activation(out + bias + residual)
// Windows are made for some output lines at a time, as all of them are nine times the input. The channels of a place are
// one stretch of memory in input and line, and moving them needs no knowledge of their dtype: a thread moves as many
// bytes as divide the stretch, up to sixteen. Of a convolution in groups, the windows hold the channels of one.
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
    unsigned stride, padding, dilation;
    // Accesses of a pixel, and the group's first.
    unsigned pixel_columns, first_column;
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
        unsigned row = y * a.stride + dy * a.dilation - a.padding;
        unsigned input_column = x * a.stride + dx * a.dilation - a.padding;
        Access value = {};
        if (row < a.height && input_column < a.width) {
            size_t source = (image * a.height + row) * a.width + input_column;
            value = static_cast<const Access*>(a.input)[source * a.pixel_columns + a.first_column + column];
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
//     out[y, x, :] (+)= sum over (dy, dx) of line of window ((y + padding - dy * dilation) / stride, ...)[dy, dx, :]
// A part of the windows may be at hand; pixels then collect from several parts in turn.
struct Fold {
    // Of the input; the channels are a group's.
    Rows pixels;
    const float* lines;
    // The group's first channel.
    float* out;
    unsigned first_input;
    unsigned first_window;
    unsigned windows;
    // Whether `out` holds the sum of earlier parts.
    unsigned add;
    unsigned height, width;
    unsigned out_height, out_width;
    unsigned window_height, window_width;
    unsigned stride, padding, dilation;
    // Channels of all groups.
    unsigned pixel_channels;
};

template <unsigned N>
__device__ __forceinline__ void fold_packs(const Fold& a) {
    for_each_pack<N>(a.pixels, [&](unsigned row, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned pixel = a.first_input + row;
        unsigned x = pixel % a.width + a.padding;
        unsigned y = pixel / a.width % a.height + a.padding;
        unsigned image = pixel / a.width / a.height;
        float* out = a.out + (size_t)pixel * a.pixel_channels + channel;
        float sums[N] = {};
        if (a.add) load<N>(out, sums);
        for (unsigned dy = 0; dy < a.window_height && dy * a.dilation <= y; dy++) {
            unsigned from_top = y - dy * a.dilation, out_y = from_top / a.stride;
            if (from_top % a.stride != 0 || out_y >= a.out_height) continue;
            for (unsigned dx = 0; dx < a.window_width && dx * a.dilation <= x; dx++) {
                unsigned from_left = x - dx * a.dilation, out_x = from_left / a.stride;
                if (from_left % a.stride != 0 || out_x >= a.out_width) continue;
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

// Each channel by itself, without a product: a thread per pack of channels of an output pixel.
struct Depthwise {
    // Of the output; in the gradient of the input, of the input.
    Rows pixels;
    const void* input;
    // [window_height, window_width, channels]
    const void* filters;
    const float* bias;
    // Or null.
    const void* residual;
    void* out;
    unsigned height, width;
    unsigned out_height, out_width;
    unsigned window_height, window_width;
    unsigned stride, padding, dilation;
    unsigned activation;
};

template <typename T, typename Out, unsigned N>
__device__ __forceinline__ void depthwise_packs(const Depthwise& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.out_width;
        unsigned y = pixel / a.out_width % a.out_height;
        size_t image = pixel / a.out_width / a.out_height;
        float sums[N];
        load<N>(a.bias + channel, sums);
        for (unsigned dy = 0; dy < a.window_height; dy++) {
            // Above and left of the input these wrap around to more than its size.
            unsigned row = y * a.stride + dy * a.dilation - a.padding;
            if (row >= a.height) continue;
            for (unsigned dx = 0; dx < a.window_width; dx++) {
                unsigned column = x * a.stride + dx * a.dilation - a.padding;
                if (column >= a.width) continue;
                size_t source = ((image * a.height + row) * a.width + column) * channels + channel;
                size_t tap = (size_t)(dy * a.window_width + dx) * channels + channel;
                float values[N], filter[N];
                load<N>(static_cast<const T*>(a.input) + source, values);
                load<N>(static_cast<const T*>(a.filters) + tap, filter);
#pragma unroll
                for (unsigned i = 0; i < N; i++) sums[i] += values[i] * filter[i];
            }
        }
        size_t at = (size_t)pixel * channels + channel;
        if (a.residual) {
            float residual[N];
            load<N>(static_cast<const T*>(a.residual) + at, residual);
#pragma unroll
            for (unsigned i = 0; i < N; i++) sums[i] += residual[i];
        }
#pragma unroll
        for (unsigned i = 0; i < N; i++) sums[i] = activate(sums[i], a.activation);
        store<N>(static_cast<Out*>(a.out) + at, sums);
    });
}

template <typename T, typename Out>
__device__ __forceinline__ void depthwise(const Depthwise& a) {
    if (a.pixels.pack == 4) {
        depthwise_packs<T, Out, 4>(a);
    } else {
        depthwise_packs<T, Out, 1>(a);
    }
}

// Named after the dtype of input, filters and residual; the second three are for results in f32.
extern "C" __global__ void conv2d_depthwise_f32(const Depthwise argument) { depthwise<float, float>(argument); }
extern "C" __global__ void conv2d_depthwise_f16(const Depthwise argument) { depthwise<__half, __half>(argument); }
extern "C" __global__ void conv2d_depthwise_bf16(const Depthwise argument) {
    depthwise<__nv_bfloat16, __nv_bfloat16>(argument);
}
extern "C" __global__ void conv2d_depthwise_to_f32_f32(const Depthwise argument) { depthwise<float, float>(argument); }
extern "C" __global__ void conv2d_depthwise_to_f32_f16(const Depthwise argument) { depthwise<__half, float>(argument); }
extern "C" __global__ void conv2d_depthwise_to_f32_bf16(const Depthwise argument) {
    depthwise<__nv_bfloat16, float>(argument);
}

// The way back: each input pixel adds up what the windows that it lies in give it. `input` is the output's gradient.
template <unsigned N>
__device__ __forceinline__ void depthwise_input_packs(const Depthwise& a) {
    for_each_pack<N>(a.pixels, [&](unsigned pixel, unsigned channel) {
        unsigned channels = a.pixels.columns;
        unsigned x = pixel % a.width + a.padding;
        unsigned y = pixel / a.width % a.height + a.padding;
        size_t image = pixel / a.width / a.height;
        float sums[N] = {};
        for (unsigned dy = 0; dy < a.window_height && dy * a.dilation <= y; dy++) {
            unsigned from_top = y - dy * a.dilation, out_y = from_top / a.stride;
            if (from_top % a.stride != 0 || out_y >= a.out_height) continue;
            for (unsigned dx = 0; dx < a.window_width && dx * a.dilation <= x; dx++) {
                unsigned from_left = x - dx * a.dilation, out_x = from_left / a.stride;
                if (from_left % a.stride != 0 || out_x >= a.out_width) continue;
                size_t source = ((image * a.out_height + out_y) * a.out_width + out_x) * channels + channel;
                size_t tap = (size_t)(dy * a.window_width + dx) * channels + channel;
                float values[N], filter[N];
                load<N>(static_cast<const float*>(a.input) + source, values);
                load<N>(static_cast<const float*>(a.filters) + tap, filter);
#pragma unroll
                for (unsigned i = 0; i < N; i++) sums[i] += values[i] * filter[i];
            }
        }
        store<N>(static_cast<float*>(a.out) + (size_t)pixel * channels + channel, sums);
    });
}

extern "C" __global__ void conv2d_depthwise_input(const Depthwise argument) {
    if (argument.pixels.pack == 4) {
        depthwise_input_packs<4>(argument);
    } else {
        depthwise_input_packs<1>(argument);
    }
}

struct DepthwiseWeight {
    const float* input;
    const float* gradient;
    // [parts, window_height, window_width, channels]
    float* sums;
    unsigned long long n;
    // Of the output, of all images; and those that a thread adds up.
    unsigned pixels, part;
    unsigned channels;
    unsigned height, width;
    unsigned out_height, out_width;
    unsigned window_height, window_width;
    unsigned stride, padding, dilation;
};

// A thread per part of the output's pixels, tap and channel.
extern "C" __global__ void conv2d_depthwise_weight(const DepthwiseWeight a) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    unsigned channel = i % a.channels;
    unsigned tap = i / a.channels % (a.window_height * a.window_width);
    unsigned first = i / a.channels / (a.window_height * a.window_width) * a.part;
    unsigned end = first + a.part < a.pixels ? first + a.part : a.pixels;
    unsigned dy = tap / a.window_width, dx = tap % a.window_width;
    float sum = 0.f;
    for (unsigned pixel = first; pixel < end; pixel++) {
        unsigned x = pixel % a.out_width;
        unsigned y = pixel / a.out_width % a.out_height;
        size_t image = pixel / a.out_width / a.out_height;
        unsigned row = y * a.stride + dy * a.dilation - a.padding;
        unsigned column = x * a.stride + dx * a.dilation - a.padding;
        if (row >= a.height || column >= a.width) continue;
        size_t source = ((image * a.height + row) * a.width + column) * a.channels + channel;
        sum += a.input[source] * a.gradient[(size_t)pixel * a.channels + channel];
    }
    a.sums[i] = sum;
}
