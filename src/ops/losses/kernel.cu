// Losses of training and their gradients. Of a loss:
//     value = share * sum of the costs of all terms, share = 1 / number of terms that are averaged over, or 0
// A fixed number of threads (of warps, where a row has a softmax) add up what they own, in f64 and in order; a block then
// adds up their sums. On the way back, a thread per prediction, or a warp per row:
//     out = gradient of the value * share * derivative of the prediction's cost
// The twins of the formulas are in cpu.rs. A row that is ignored is not looked at: it may hold NaN.

#define WARP 32
#define BLOCK 256
#define ALL_LANES 0xffffffffu
#define IGNORED 0xffffffffu
// 1 / 9 as an f32.
#define SMOOTH_L1_BETA ((double)(1.f / 9.f))

struct Loss {
    // [rows, width]
    const float* predictions;
    // [rows]
    const unsigned* labels;
    // [rows, 4] of boxes, [rows, width] of masks.
    const float* targets;
    // Of the value.
    const float* gradient;
    // [2, parts]: of each thread or warp, costs and rows that are averaged over.
    double* sums;
    float* value;
    double* share;
    // [rows, width]
    float* out;
    unsigned long long rows;
    unsigned width;
    unsigned parts;
    // Of a row, terms that are averaged over.
    unsigned terms;
    unsigned unused;
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

// Binary cross-entropy of the sigmoid of a logit. The maximum drops NaN, the other terms don't.
__device__ __forceinline__ Term cross_entropy_with_logit(double logit, double target) {
    return {fmax(logit, 0.) - logit * target + log1p(exp(-fabs(logit))), 1. / (1. + exp(-logit)) - target};
}

__device__ __forceinline__ Term smooth_l1(double difference) {
    double size = fabs(difference);
    if (size < SMOOTH_L1_BETA) {
        return {0.5 * difference * difference / SMOOTH_L1_BETA, difference / SMOOTH_L1_BETA};
    }
    // NaN stays NaN.
    double sign = difference > 0. ? 1. : difference < 0. ? -1. : difference;
    return {size - 0.5 * SMOOTH_L1_BETA, sign};
}

// What a thread or a warp has added up.
struct Sum {
    double costs, rows;
};

__device__ __forceinline__ void keep(const Loss& a, unsigned long long part, Sum sum) {
    a.sums[part] = sum.costs;
    a.sums[a.parts + part] = sum.rows;
}

// Part i of all parts adds up every parts-th of n: `work(i, sum)`.
template <typename Work>
__device__ __forceinline__ void add_up(const Loss& a, unsigned long long n, Work work) {
    unsigned long long part = place();
    if (part >= a.parts) return;
    Sum sum = {0., 0.};
    for (unsigned long long i = part; i < n; i += a.parts) work(i, sum);
    keep(a, part, sum);
}

__device__ __forceinline__ Term objectness(const Loss& a, unsigned long long row, unsigned label) {
    return cross_entropy_with_logit(a.predictions[row], label > 0 ? 1. : 0.);
}

__device__ __forceinline__ Term mask(const Loss& a, unsigned long long place) {
    return cross_entropy_with_logit(a.predictions[place], a.targets[place]);
}

// Of an object: the column of the first delta that is compared, `width` where the label is no class.
__device__ __forceinline__ unsigned first_delta(const Loss& a, unsigned label) {
    if (a.width == 4) return 0;
    return label < a.width / 4 ? 4 * label : a.width;
}

__device__ __forceinline__ Term delta(const Loss& a, unsigned long long row, unsigned first, unsigned side) {
    double prediction = a.predictions[row * a.width + first + side];
    return smooth_l1(prediction - (double)a.targets[row * 4 + side]);
}

extern "C" __global__ void losses_objectness(const Loss a) {
    add_up(a, a.rows, [&](unsigned long long row, Sum& sum) {
        unsigned label = a.labels[row];
        if (label == IGNORED) return;
        sum.costs += objectness(a, row, label).value;
        sum.rows += 1.;
    });
}

extern "C" __global__ void losses_boxes(const Loss a) {
    add_up(a, a.rows, [&](unsigned long long row, Sum& sum) {
        unsigned label = a.labels[row];
        if (label == IGNORED) return;
        sum.rows += 1.;
        if (label == 0) return;
        unsigned first = first_delta(a, label);
        if (first == a.width) {
            sum.costs = not_a_number();
            return;
        }
        for (unsigned side = 0; side < 4; side++) sum.costs += delta(a, row, first, side).value;
    });
}

extern "C" __global__ void losses_masks(const Loss a) {
    add_up(a, a.rows * a.width, [&](unsigned long long i, Sum& sum) {
        unsigned label = a.labels[i / a.width];
        if (label == IGNORED || label == 0) return;
        sum.costs += mask(a, i).value;
        if (i % a.width == 0) sum.rows += 1.;
    });
}

// ln of the sum of the exponentials of a row, for all lanes of the warp.
__device__ __forceinline__ double normaliser(const float* logits, unsigned classes) {
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

// A warp per part.
extern "C" __global__ void losses_classifier(const Loss a) {
    unsigned long long part = place() / WARP;
    if (part >= a.parts) return;
    Sum sum = {0., 0.};
    for (unsigned long long row = part; row < a.rows; row += a.parts) {
        unsigned label = a.labels[row];
        if (label == IGNORED) continue;
        const float* logits = a.predictions + row * a.width;
        double whole = normaliser(logits, a.width);
        sum.costs += label < a.width ? whole - (double)logits[label] : not_a_number();
        sum.rows += 1.;
    }
    if (threadIdx.x % WARP == 0) keep(a, part, sum);
}

// One block.
extern "C" __global__ void losses_total(const Loss a) {
    __shared__ Sum sums[BLOCK];
    Sum sum = {0., 0.};
    for (unsigned part = threadIdx.x; part < a.parts; part += BLOCK) {
        sum.costs += a.sums[part];
        sum.rows += a.sums[a.parts + part];
    }
    sums[threadIdx.x] = sum;
    for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) {
            sums[threadIdx.x].costs += sums[threadIdx.x + width].costs;
            sums[threadIdx.x].rows += sums[threadIdx.x + width].rows;
        }
    }
    if (threadIdx.x > 0) return;
    double terms = sums[0].rows * a.terms;
    double share = terms > 0. ? 1. / terms : 0.;
    // Without terms, no costs either.
    *a.value = (float)(sums[0].costs * share);
    *a.share = share;
}

__device__ __forceinline__ double factor(const Loss& a) {
    return *a.share * (double)*a.gradient;
}

// A thread per prediction: `slope(i, row, label)` of rows that are not ignored.
template <typename Slope>
__device__ __forceinline__ void go_back(const Loss& a, Slope slope) {
    unsigned long long i = place();
    if (i >= a.rows * a.width) return;
    unsigned long long row = i / a.width;
    unsigned label = a.labels[row];
    a.out[i] = label == IGNORED ? 0.f : (float)(slope(i, row, label) * factor(a));
}

extern "C" __global__ void losses_objectness_back(const Loss a) {
    go_back(a, [&](unsigned long long, unsigned long long row, unsigned label) {
        return objectness(a, row, label).slope;
    });
}

extern "C" __global__ void losses_boxes_back(const Loss a) {
    go_back(a, [&](unsigned long long i, unsigned long long row, unsigned label) {
        unsigned column = i % a.width;
        unsigned first = first_delta(a, label);
        if (label == 0 || column < first || column >= first + 4) return 0.;
        return delta(a, row, first, column - first).slope;
    });
}

extern "C" __global__ void losses_masks_back(const Loss a) {
    go_back(a, [&](unsigned long long i, unsigned long long, unsigned label) {
        return label == 0 ? 0. : mask(a, i).slope;
    });
}

// A warp per row.
extern "C" __global__ void losses_classifier_back(const Loss a) {
    unsigned long long row = place() / WARP;
    if (row >= a.rows) return;
    unsigned label = a.labels[row];
    const float* logits = a.predictions + row * a.width;
    double whole = label == IGNORED ? 0. : normaliser(logits, a.width);
    for (unsigned class_ = threadIdx.x % WARP; class_ < a.width; class_ += WARP) {
        double slope = exp((double)logits[class_] - whole) - (class_ == label ? 1. : 0.);
        a.out[row * a.width + class_] = label == IGNORED ? 0.f : (float)(slope * factor(a));
    }
}
