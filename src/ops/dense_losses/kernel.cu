// Losses of predictions at every place of a pyramid, and their gradients. Of a loss:
//     value = sum over images of weight of the image * sum of the costs of its places
// A fixed number of threads add up what they own, in f64 and in order; a block then adds up their sums. On the way back:
//     out = gradient of the value * weight of the image * derivative of the prediction's cost
// Predictions are in a table of levels, rows of an image being numbered through all of them. The twins of the formulas are
// in cpu.rs, cpu_focal.rs and cpu_hard_negatives.rs.
#include "geometry.cuh"
#include "matches.cuh"
#include "order.cuh"
#include "tables.cuh"

#define WARP 32
#define BLOCK 256
#define LEVELS 8
#define ALL_LANES 0xffffffffu
#define FOCAL_ALPHA 0.25f
#define L1 0u
#define SMOOTH_L1 1u

struct Dense {
    const float* anchors;          // [A, 4]
    const unsigned* matches;       // [N, A]
    const float* boxes;            // [N, G, 4]
    const unsigned* labels;        // [N, G]
    const float* gradient;         // of the value
    unsigned* positives;           // [N]
    double* weights;               // [N]
    float* costs;                  // [N, A], of hard negatives
    unsigned* times;               // [N, A], how often a place counts among hard negatives
    double* sums;                  // [parts]
    float* value;
    unsigned images;
    unsigned rows;                 // of an image
    unsigned width;                // predictions of a row
    unsigned n_objects;
    unsigned parts;
    unsigned per_image;            // whether an image's costs are divided by its own positives
    unsigned per_positive;
    unsigned coding;
    unsigned cost;
    float beta;
    float divisors[4];
};

struct Term {
    double value, slope;
};

__device__ __forceinline__ unsigned long long place() {
    return (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ double not_a_number() {
    return __longlong_as_double(0x7ff8000000000000ll);
}

__device__ __forceinline__ double factor(const Dense& a, unsigned image) {
    return a.weights[image] * (double)*a.gradient;
}

// The values of a row of an image; null below all levels, or where a level has no address.
__device__ __forceinline__ float* find(const Table& levels, const Dense& a, unsigned image, unsigned row) {
    for (unsigned level = 0; level < LEVELS; level++) {
        unsigned length = levels.lengths[level];
        if (row < length) {
            float* values = (float*)levels.pointers[level];
            return values ? values + ((size_t)image * length + row) * a.width : nullptr;
        }
        row -= length;
    }
    return nullptr;
}

// The object that a place of the batch has found; false for none. `object` is NO_OBJECT where the match is no object.
#define NO_OBJECT 0xffffffffu
__device__ __forceinline__ bool has_object(const Dense& a, unsigned image, unsigned long long at, unsigned& object) {
    unsigned code = a.matches[at];
    if (code < FIRST_OBJECT) return false;
    object = code - FIRST_OBJECT < a.n_objects ? image * a.n_objects + code - FIRST_OBJECT : NO_OBJECT;
    return true;
}

// Part i of all parts adds up every parts-th of n: `cost(i)`.
template <typename Cost>
__device__ __forceinline__ void add_up(const Dense& a, unsigned long long n, Cost cost) {
    unsigned long long part = place();
    if (part >= a.parts) return;
    double sum = 0.;
    for (unsigned long long i = part; i < n; i += a.parts) sum += cost(i);
    a.sums[part] = sum;
}

// grid: (1, images)
extern "C" __global__ void dense_losses_positives(const Dense a) {
    __shared__ unsigned counts[BLOCK];
    const unsigned* matches = a.matches + (size_t)blockIdx.y * a.rows;
    unsigned count = 0;
    for (unsigned i = threadIdx.x; i < a.rows; i += BLOCK) count += matches[i] >= FIRST_OBJECT;
    counts[threadIdx.x] = count;
    for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) counts[threadIdx.x] += counts[threadIdx.x + width];
    }
    if (threadIdx.x == 0) a.positives[blockIdx.y] = counts[0];
}

// A thread per image.
extern "C" __global__ void dense_losses_weights(const Dense a) {
    unsigned long long image = place();
    if (image >= a.images) return;
    if (a.per_image) {
        a.weights[image] = 1. / (double)max(a.positives[image], 1u) / (double)a.images;
        return;
    }
    unsigned long long all = 0;
    for (unsigned i = 0; i < a.images; i++) all += a.positives[i];
    a.weights[image] = 1. / (double)(all > 0 ? all : 1);
}

// One block.
extern "C" __global__ void dense_losses_total(const Dense a) {
    __shared__ double sums[BLOCK];
    double sum = 0.;
    for (unsigned part = threadIdx.x; part < a.parts; part += BLOCK) sum += a.sums[part];
    sums[threadIdx.x] = sum;
    for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    }
    if (threadIdx.x == 0) *a.value = (float)sums[0];
}

// Of a logit, in f32; NaN passes.
__device__ __forceinline__ Term focal(float logit, bool wanted) {
    float towards = wanted ? -logit : logit;
    float small = expf(-fabsf(logit)), inverse = 1.f / (1.f + small), below = small * inverse;
    // The probability of what is not wanted, and the rest.
    float wrong = towards >= 0.f ? inverse : below, right = towards >= 0.f ? below : inverse;
    float surprise = (towards >= 0.f ? towards : 0.f) + log1pf(small);
    float square = (wanted ? FOCAL_ALPHA : 1.f - FOCAL_ALPHA) * wrong * wrong;
    float slope = square * (2.f * right * surprise + wrong);
    return {square * surprise, wanted ? -slope : slope};
}

// The class that is wanted at a place, `width` for none.
__device__ __forceinline__ unsigned wanted_class(const Dense& a, unsigned image, unsigned long long at, bool& sane) {
    unsigned object;
    sane = true;
    if (!has_object(a, image, at, object)) return a.width;
    unsigned label = object == NO_OBJECT ? a.width : a.labels[object];
    sane = label < a.width;
    return label;
}

extern "C" __global__ void dense_losses_focal(const Table levels, const Dense a) {
    add_up(a, (unsigned long long)a.images * a.rows * a.width, [&](unsigned long long i) {
        unsigned long long at = i / a.width;
        if (a.matches[at] == IGNORED) return 0.;
        unsigned image = at / a.rows, row = at % a.rows, class_ = i % a.width;
        bool sane;
        unsigned wanted = wanted_class(a, image, at, sane);
        if (!sane) return not_a_number();
        const float* logits = find(levels, a, image, row);
        return focal(logits[class_], class_ == wanted).value * a.weights[image];
    });
}

extern "C" __global__ void dense_losses_focal_back(const Table levels, const Table outs, const Dense a) {
    unsigned long long i = place();
    if (i >= (unsigned long long)a.images * a.rows * a.width) return;
    unsigned long long at = i / a.width;
    unsigned image = at / a.rows, row = at % a.rows, class_ = i % a.width;
    float* out = find(outs, a, image, row) + class_;
    if (a.matches[at] == IGNORED) {
        *out = 0.f;
        return;
    }
    bool sane;
    unsigned wanted = wanted_class(a, image, at, sane);
    Term term = focal(find(levels, a, image, row)[class_], class_ == wanted);
    *out = (float)(term.slope * factor(a, image));
}

// Cost of a predicted box, and the derivatives by the values that describe it.
__device__ __forceinline__ double box_cost(const Dense& a, const float* values, Box reference, Box object,
                                           double* slopes) {
    BoxCoding coding = {a.coding, {a.divisors[0], a.divisors[1], a.divisors[2], a.divisors[3]}};
    if (a.cost != L1 && a.cost != SMOOTH_L1) {
        double predicted[4], by_corner[4];
        coding.decode(values, reference, predicted);
        double target[4] = {object.x1, object.y1, object.x2, object.y2};
        double loss = giou_loss(predicted, target, by_corner);
        coding.slopes(values, reference, by_corner, slopes);
        return loss;
    }
    double beta = a.cost == L1 ? 0. : (double)a.beta;
    Box box = coding.encode(object, reference);
    float wanted[4] = {box.x1, box.y1, box.x2, box.y2};
    double sum = 0.;
    for (unsigned side = 0; side < 4; side++) {
        double difference = (double)values[side] - (double)wanted[side];
        double size = fabs(difference);
        if (size < beta) {
            sum += 0.5 * difference * difference / beta;
            slopes[side] = difference / beta;
        } else {
            sum += size - 0.5 * beta;
            // NaN stays NaN.
            slopes[side] = difference > 0. ? 1. : difference < 0. ? -1. : difference;
        }
    }
    return sum;
}

extern "C" __global__ void dense_losses_boxes(const Table levels, const Dense a) {
    add_up(a, (unsigned long long)a.images * a.rows, [&](unsigned long long at) {
        unsigned image = at / a.rows, row = at % a.rows, object;
        if (!has_object(a, image, at, object)) return 0.;
        if (object == NO_OBJECT) return not_a_number();
        double slopes[4];
        const float* values = find(levels, a, image, row);
        return box_cost(a, values, load_box(a.anchors, row), load_box(a.boxes, object), slopes) * a.weights[image];
    });
}

extern "C" __global__ void dense_losses_boxes_back(const Table levels, const Table outs, const Dense a) {
    unsigned long long at = place();
    if (at >= (unsigned long long)a.images * a.rows) return;
    unsigned image = at / a.rows, row = at % a.rows, object;
    double slopes[4] = {0., 0., 0., 0.};
    if (has_object(a, image, at, object) && object != NO_OBJECT) {
        const float* values = find(levels, a, image, row);
        box_cost(a, values, load_box(a.anchors, row), load_box(a.boxes, object), slopes);
    }
    float* out = find(outs, a, image, row);
    for (unsigned side = 0; side < 4; side++) out[side] = (float)(slopes[side] * factor(a, image));
}

__device__ __forceinline__ double side_ratio(float a, float b) {
    return fminf(a, b) / fmaxf(a, b);
}

__device__ __forceinline__ Term centerness(const Dense& a, float value, unsigned row, unsigned object) {
    Box sides = distances(load_box(a.boxes, object), load_box(a.anchors, row));
    double target = sqrt(side_ratio(sides.x1, sides.x2) * side_ratio(sides.y1, sides.y2));
    double logit = value;
    // The maximum drops NaN, the other terms don't.
    double cost = fmax(logit, 0.) - logit * target + log1p(exp(-fabs(logit)));
    return {cost, 1. / (1. + exp(-logit)) - target};
}

extern "C" __global__ void dense_losses_centerness(const Table levels, const Dense a) {
    add_up(a, (unsigned long long)a.images * a.rows, [&](unsigned long long at) {
        unsigned image = at / a.rows, row = at % a.rows, object;
        if (!has_object(a, image, at, object)) return 0.;
        if (object == NO_OBJECT) return not_a_number();
        return centerness(a, *find(levels, a, image, row), row, object).value * a.weights[image];
    });
}

extern "C" __global__ void dense_losses_centerness_back(const Table levels, const Table outs, const Dense a) {
    unsigned long long at = place();
    if (at >= (unsigned long long)a.images * a.rows) return;
    unsigned image = at / a.rows, row = at % a.rows, object;
    double slope = 0.;
    if (has_object(a, image, at, object) && object != NO_OBJECT) {
        slope = centerness(a, *find(levels, a, image, row), row, object).slope;
    }
    *find(outs, a, image, row) = (float)(slope * factor(a, image));
}

// ln of the sum of the exponentials of a row, for all lanes of the warp.
__device__ __forceinline__ double normalizer(const float* logits, unsigned classes) {
    unsigned lane = threadIdx.x % WARP;
    // No exponential overflows.
    double largest = __longlong_as_double(0xfff0000000000000ll);
    for (unsigned class_ = lane; class_ < classes; class_ += WARP) largest = fmax(largest, (double)logits[class_]);
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        largest = fmax(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    }
    double total = 0.;
    for (unsigned class_ = lane; class_ < classes; class_ += WARP) total += exp((double)logits[class_] - largest);
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        total += __shfl_xor_sync(ALL_LANES, total, distance);
    }
    return largest + log(total);
}

// A warp per place.
extern "C" __global__ void dense_losses_cross_entropy(const Table levels, const Dense a) {
    unsigned long long at = place() / WARP;
    if (at >= (unsigned long long)a.images * a.rows) return;
    unsigned image = at / a.rows, row = at % a.rows;
    bool sane;
    unsigned label = wanted_class(a, image, at, sane);
    if (sane && label == a.width) label = 0;
    float cost = 0.f;
    if (a.matches[at] != IGNORED) {
        const float* logits = find(levels, a, image, row);
        double whole = normalizer(logits, a.width);
        cost = sane ? (float)(whole - (double)logits[label]) : nanf("");
    }
    if (threadIdx.x % WARP == 0) a.costs[at] = cost;
}

// By which places are chosen: positives last, and what is not a number first, so that it shows.
__device__ __forceinline__ unsigned long long hardness(const unsigned* matches, const float* costs, unsigned i) {
    float cost = costs[i];
    float value = matches[i] >= FIRST_OBJECT ? -INFINITY : isnan(cost) ? INFINITY : cost;
    return descending_key(value, i);
}

// A block per image (y).
extern "C" __global__ void __launch_bounds__(SELECT_THREADS) dense_losses_choose(const Dense a) {
    __shared__ unsigned available;
    size_t first = (size_t)blockIdx.y * a.rows;
    const unsigned* matches = a.matches + first;
    const float* costs = a.costs + first;
    if (threadIdx.x == 0) available = 0;
    __syncthreads();
    unsigned count = 0;
    for (unsigned i = threadIdx.x; i < a.rows; i += blockDim.x) count += matches[i] != IGNORED;
    atomicAdd(&available, count);
    __syncthreads();
    unsigned long long wanted = (unsigned long long)a.positives[blockIdx.y] * a.per_positive;
    unsigned most = available;
    Prefix hardest = smallest(
        a.rows, most, wanted < most ? (unsigned)wanted : most, [&](unsigned i) { return matches[i] != IGNORED; },
        [&](unsigned i) { return hardness(matches, costs, i); });
    for (unsigned i = threadIdx.x; i < a.rows; i += blockDim.x) {
        bool chosen = matches[i] != IGNORED && hardest.contains(hardness(matches, costs, i));
        a.times[first + i] = (matches[i] >= FIRST_OBJECT) + chosen;
    }
}

extern "C" __global__ void dense_losses_chosen(const Dense a) {
    add_up(a, (unsigned long long)a.images * a.rows, [&](unsigned long long at) {
        unsigned times = a.times[at];
        return times ? (double)a.costs[at] * times * a.weights[at / a.rows] : 0.;
    });
}

// A warp per place.
extern "C" __global__ void dense_losses_chosen_back(const Table levels, const Table outs, const Dense a) {
    unsigned long long at = place() / WARP;
    if (at >= (unsigned long long)a.images * a.rows) return;
    unsigned image = at / a.rows, row = at % a.rows;
    unsigned times = a.times[at];
    bool sane;
    unsigned label = wanted_class(a, image, at, sane);
    if (sane && label == a.width) label = 0;
    const float* logits = find(levels, a, image, row);
    float* out = find(outs, a, image, row);
    double whole = times ? normalizer(logits, a.width) : 0.;
    for (unsigned class_ = threadIdx.x % WARP; class_ < a.width; class_ += WARP) {
        double slope = times ? exp((double)logits[class_] - whole) - (class_ == label ? 1. : 0.) : 0.;
        out[class_] = (float)(slope * times * factor(a, image));
    }
}
