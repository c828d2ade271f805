// A block per row of cells of a slot, eight threads per cell:
//     write zeros for an empty slot, and for one whose object has no pixels
//     for each of the row's samples, up to 64 at a time: note which two lines of pixels it mixes, and by which weights
//     each thread, for every eighth of its cell's samples along the row: sum += the pixels of all noted lines, mixed
//     sum of a cell = that of its eight threads, in their order
// The places of samples are those of cpu.rs, operation by operation; only the order of the sums is another. An outline has
// hundreds of lines, so that a thread per cell would have ten thousands of pixels to read, one after another.
#define CELLS 32
#define LANES 8
#define SAMPLES 64
// More samples than this along a cell are not told apart by f32.
#define MOST_SAMPLES 8388608.f

struct MaskTargets {
    const unsigned char* pixels;
    const unsigned* places;
    const float* boxes;
    const unsigned* objects;
    const unsigned* counts;
    float* targets;
    unsigned long long n_pixels;
    unsigned n_objects;
    unsigned n_slots;
    unsigned side;
    unsigned unused;
};

struct Place {
    unsigned start, top, left, rows, columns, height, width, resized_height, resized_width;
};

// Rows (or columns) of an image, those that are kept of an object, and where a box is sampled along them.
struct Axis {
    unsigned first, kept, original, resized;
    float scale;
    float start, bin, samples;
};

__device__ __forceinline__ Axis axis(unsigned first, unsigned kept, unsigned original, unsigned resized, float start,
                                     float end, unsigned cells) {
    float bin = fmaxf(end - start, 1.f) / (float)cells;
    return {first, kept, original, resized, (float)original / (float)resized, start, bin, ceilf(bin)};
}

__device__ __forceinline__ float position(const Axis& axis, unsigned cell, unsigned sample) {
    return axis.start + (float)cell * axis.bin + ((float)sample + 0.5f) * axis.bin / axis.samples;
}

struct Range {
    unsigned first, end;
};

// The samples of a cell that lie on the image, or a pixel outside of it at most. None for NaN.
__device__ Range inside(const Axis& axis, unsigned cell) {
    if (axis.samples > MOST_SAMPLES) return {0, 0};
    unsigned n = (unsigned)axis.samples;
    Range range = {0, 0};
    for (unsigned high = n; range.first < high;) {
        unsigned middle = (range.first + high) / 2;
        if (position(axis, cell, middle) >= -1.f) high = middle;
        else range.first = middle + 1;
    }
    for (unsigned high = n; range.end < high;) {
        unsigned middle = (range.end + high) / 2;
        if (position(axis, cell, middle) <= (float)axis.resized) range.end = middle + 1;
        else high = middle;
    }
    return range;
}

// Two neighbouring lines of the resized image, as lines that are kept, and how much they count: not at all if they are not
// kept.
struct Tap {
    unsigned low, high;
    float low_weight, high_weight;
};

// Sets `line` to the kept line that a resized one shows, and returns its weight.
__device__ __forceinline__ float keep(const Axis& axis, unsigned index, float weight, unsigned& line) {
    unsigned nearest = min((unsigned)((float)index * axis.scale), axis.original - 1);
    // Those before the first wrap around.
    line = nearest - axis.first;
    if (line < axis.kept) return weight / axis.samples;
    line = 0;
    return 0.f;
}

__device__ Tap tap(const Axis& axis, unsigned cell, unsigned sample) {
    float at = fmaxf(position(axis, cell, sample), 0.f);
    unsigned low = min((unsigned)at, axis.resized - 1);
    float fraction = low + 1 < axis.resized ? at - (float)low : 0.f;
    Tap tap;
    tap.low_weight = keep(axis, low, 1.f - fraction, tap.low);
    tap.high_weight = keep(axis, low + 1, fraction, tap.high);
    return tap;
}

// Whether a slot is filled, and has an object of which something is kept.
__device__ bool find(const MaskTargets& a, unsigned slot, Place& place) {
    unsigned image = slot / a.n_slots;
    if (slot % a.n_slots >= a.counts[image]) return false;
    unsigned object = a.objects[slot];
    if (object >= a.n_objects) return false;
    const unsigned* p = a.places + ((size_t)image * a.n_objects + object) * 9;
    place = {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8]};
    unsigned long long kept = (unsigned long long)place.rows * place.columns;
    bool is_there = place.start <= a.n_pixels && kept <= a.n_pixels - place.start;
    return kept > 0 && is_there && place.resized_height > 0 && place.resized_width > 0;
}

// The sum of a column sample over `n` row samples.
__device__ __forceinline__ float mix(const unsigned char* pixels, unsigned width, const Tap* rows, unsigned n,
                                     const Tap& column) {
    float low = 0.f, high = 0.f;
    for (unsigned i = 0; i < n; i++) {
        const Tap& row = rows[i];
        const unsigned char* above = pixels + (size_t)row.low * width;
        const unsigned char* below = pixels + (size_t)row.high * width;
        low += row.low_weight * (float)above[column.low] + row.high_weight * (float)below[column.low];
        high += row.low_weight * (float)above[column.high] + row.high_weight * (float)below[column.high];
    }
    return column.low_weight * low + column.high_weight * high;
}

extern "C" __global__ void __launch_bounds__(CELLS * LANES) mask_targets(const MaskTargets a) {
    __shared__ Tap taps[SAMPLES];
    __shared__ float sums[CELLS * LANES];
    unsigned slot = blockIdx.x / a.side;
    unsigned row = blockIdx.x % a.side;
    float* out = a.targets + (size_t)blockIdx.x * a.side;
    Place place;
    if (!find(a, slot, place)) {
        for (unsigned cell = threadIdx.x; cell < a.side; cell += blockDim.x) out[cell] = 0.f;
        return;
    }
    const unsigned char* pixels = a.pixels + place.start;
    const float* corners = a.boxes + (size_t)slot * 4;
    Axis rows = axis(place.top, place.rows, place.height, place.resized_height, corners[1], corners[3], a.side);
    Axis columns = axis(place.left, place.columns, place.width, place.resized_width, corners[0], corners[2], a.side);
    Range down = inside(rows, row);
    unsigned lane = threadIdx.x % LANES;
    for (unsigned first = 0; first < a.side; first += CELLS) {
        unsigned cell = first + threadIdx.x / LANES;
        Range across = inside(columns, cell);
        float sum = 0.f;
        for (unsigned sample = down.first; sample < down.end; sample += SAMPLES) {
            unsigned n = min(down.end - sample, SAMPLES);
            __syncthreads();
            if (threadIdx.x < n) taps[threadIdx.x] = tap(rows, row, sample + threadIdx.x);
            __syncthreads();
            for (unsigned i = across.first + lane; i < across.end && cell < a.side; i += LANES) {
                sum += mix(pixels, place.columns, taps, n, tap(columns, cell, i));
            }
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (lane == 0 && cell < a.side) {
            float total = 0.f;
            for (unsigned i = 0; i < LANES; i++) total += sums[threadIdx.x + i];
            out[cell] = total;
        }
        __syncthreads();
    }
}
