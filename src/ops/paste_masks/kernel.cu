// A thread per four neighbouring pixels of a mask's canvas:
//     grow the box about its centre, and cut it to whole pixels
//     for each pixel, if it lies in the box: 255 if the bilinear value of the bordered probabilities is above the threshold
//     else 0
// The twin of paste.rs, operation by operation. The host keeps a row that it has stretched to the box's width for the
// pixels below; here each pixel does its three interpolations by itself, as most pixels lie outside of the box anyway.
#define PIXELS 4

struct PasteMasks {
    const float* probabilities;
    const float* boxes;
    unsigned char* masks;
    unsigned n_masks;
    unsigned side;
    unsigned height, width;
    // How much a box grows with the border.
    float growth;
    float threshold;
};

// Pixels that a box covers along one axis; the image has those from `first` up to before `end`.
struct Span {
    long long start, length, first, end;
};

// Rust's conversion of floats, which is also PTX's: towards zero, and up to the ends of the range.
__device__ __forceinline__ long long whole(float value) {
    return (long long)value;
}

#define LARGEST 0x7fffffffffffffffll

__device__ __forceinline__ long long saturating_add(long long a, long long b) {
    if (b > 0 && a > LARGEST - b) return LARGEST;
    if (b < 0 && a < -LARGEST - 1 - b) return -LARGEST - 1;
    return a + b;
}

__device__ __forceinline__ long long saturating_subtract(long long a, long long b) {
    if (b < 0 && a > LARGEST + b) return LARGEST;
    if (b > 0 && a < -LARGEST - 1 + b) return -LARGEST - 1;
    return a - b;
}

__device__ __forceinline__ Span span(float low, float high, float growth, unsigned limit) {
    float half = (high - low) * 0.5f * growth;
    float centre = (high + low) * 0.5f;
    low = centre - half;
    high = centre + half;
    if (!isfinite(low) || !isfinite(high)) return {0, 1, 0, 0};
    long long start = whole(low), last = whole(high);
    long long end = min(saturating_add(last, 1), (long long)limit);
    long long length = max(saturating_add(saturating_subtract(last, start), 1), 1ll);
    return {start, length, max(start, 0ll), end};
}

// Two neighbouring samples and how much the second one counts.
struct Tap {
    unsigned low, high;
    float weight;
};

__device__ __forceinline__ Tap tap(const Span& span, unsigned pixel, unsigned side) {
    float ratio = (float)side / (float)span.length;
    float position = fmaxf(ratio * ((float)(pixel - span.start) + 0.5f) - 0.5f, 0.f);
    unsigned low = min((unsigned)position, side - 1);
    return {low, min(low + 1, side - 1), fminf(position - (float)low, 1.f)};
}

__device__ __forceinline__ float mix(float low, float high, float weight) {
    return low * (1.f - weight) + high * weight;
}

// A sample of the probabilities with their border, whose indices wrap around to more than the side.
__device__ __forceinline__ float sample(const float* probabilities, unsigned side, unsigned row, unsigned column) {
    row -= 1;
    column -= 1;
    return row < side && column < side ? probabilities[row * side + column] : 0.f;
}

__device__ __forceinline__ float across(const float* probabilities, unsigned side, unsigned row, const Tap& columns) {
    float low = sample(probabilities, side, row, columns.low);
    float high = sample(probabilities, side, row, columns.high);
    return mix(low, high, columns.weight);
}

extern "C" __global__ void paste_masks(const PasteMasks a) {
    unsigned pixels = a.height * a.width;
    unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * PIXELS;
    if (first >= pixels) return;
    for (unsigned mask = blockIdx.y; mask < a.n_masks; mask += gridDim.y) {
        const float* corners = a.boxes + (size_t)mask * 4;
        const float* probabilities = a.probabilities + (size_t)mask * a.side * a.side;
        unsigned char* out = a.masks + (size_t)mask * pixels + first;
        Span columns = span(corners[0], corners[2], a.growth, a.width);
        Span rows = span(corners[1], corners[3], a.growth, a.height);
        unsigned char values[PIXELS] = {};
        for (unsigned i = 0; i < PIXELS && first + i < pixels; i++) {
            unsigned x = (first + i) % a.width;
            unsigned y = (first + i) / a.width;
            if (x < columns.first || x >= columns.end || y < rows.first || y >= rows.end) continue;
            Tap horizontal = tap(columns, x, a.side + 2);
            Tap vertical = tap(rows, y, a.side + 2);
            float low = across(probabilities, a.side, vertical.low, horizontal);
            float high = across(probabilities, a.side, vertical.high, horizontal);
            values[i] = mix(low, high, vertical.weight) > a.threshold ? 255 : 0;
        }
        if (pixels % PIXELS == 0) {
            *reinterpret_cast<uchar4*>(out) = make_uchar4(values[0], values[1], values[2], values[3]);
        } else {
            for (unsigned i = 0; i < PIXELS && first + i < pixels; i++) out[i] = values[i];
        }
    }
}
