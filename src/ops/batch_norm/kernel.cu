// Normalisation by the statistics of the batch, and its gradients. A thread per value, or per part of the rows and channel
// where sums are made; what is one number per channel is computed once per channel, in f64.

// Values [rows, channels].
struct Norm {
    const float* input;
    const float* gradient;
    const float* residual;
    float* out;
    // [channels] each, or [parts, channels] for sums.
    const float* mean;
    const float* variance;
    const float* weight;
    const float* bias;
    float* sums;
    // [3, channels]: factors of the gradient or input, and a summand.
    float* factors;
    unsigned long long rows;
    double eps;
    unsigned channels;
    unsigned part;
    unsigned parts;
    unsigned relu;
};

__device__ __forceinline__ unsigned long long place() {
    return (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
}

// Sums of the squares of input - mean, of each part of the rows.
extern "C" __global__ void batch_norm_squares(const Norm a) {
    unsigned long long i = place();
    if (i >= (unsigned long long)a.parts * a.channels) return;
    unsigned long long channel = i % a.channels, first = i / a.channels * a.part;
    unsigned long long end = first + a.part < a.rows ? first + a.part : a.rows;
    float mean = a.mean[channel], sum = 0.f;
    for (unsigned long long row = first; row < end; row++) {
        float difference = a.input[row * a.channels + channel] - mean;
        sum += difference * difference;
    }
    a.sums[i] = sum;
}

// Sums of (input - mean) * gradient, of each part of the rows.
extern "C" __global__ void batch_norm_products(const Norm a) {
    unsigned long long i = place();
    if (i >= (unsigned long long)a.parts * a.channels) return;
    unsigned long long channel = i % a.channels, first = i / a.channels * a.part;
    unsigned long long end = first + a.part < a.rows ? first + a.part : a.rows;
    float mean = a.mean[channel], sum = 0.f;
    for (unsigned long long row = first; row < end; row++) {
        unsigned long long at = row * a.channels + channel;
        sum += (a.input[at] - mean) * a.gradient[at];
    }
    a.sums[i] = sum;
}

// Sums to means; without rows, zero.
extern "C" __global__ void batch_norm_divide(const float* sums, float* means, unsigned long long rows, unsigned channels) {
    unsigned long long channel = place();
    if (channel < channels) means[channel] = rows == 0 ? 0.f : (float)((double)sums[channel] / (double)rows);
}

__device__ __forceinline__ double inverse_deviation(const Norm& a, unsigned long long channel) {
    return 1. / sqrt((double)a.variance[channel] + a.eps);
}

// out = activation(input * factors[0] + factors[1] + residual)
extern "C" __global__ void batch_norm_factors(const Norm a) {
    unsigned long long channel = place();
    if (channel >= a.channels) return;
    float scale = (float)(inverse_deviation(a, channel) * (double)a.weight[channel]);
    a.factors[channel] = scale;
    a.factors[a.channels + channel] = a.bias[channel] - a.mean[channel] * scale;
}

extern "C" __global__ void batch_norm_apply(const Norm a) {
    unsigned long long i = place();
    if (i >= a.rows * a.channels) return;
    unsigned long long channel = i % a.channels;
    float value = a.input[i] * a.factors[channel] + a.factors[a.channels + channel];
    if (a.residual) value += a.residual[i];
    // NaN stays NaN.
    a.out[i] = a.relu && value < 0.f ? 0.f : value;
}

// From the sums of products, in `sums`, and of gradients, in `bias`: the weight's gradient, to `out`, and with it
//     gradient of input = gradient * factors[0] + (input - mean) * factors[1] + factors[2]
extern "C" __global__ void batch_norm_back_factors(const Norm a) {
    unsigned long long channel = place();
    if (channel >= a.channels) return;
    float inverse = (float)inverse_deviation(a, channel);
    float of_weight = a.sums[channel] * inverse;
    float scale = a.weight[channel] * inverse;
    float rows = (float)a.rows;
    a.out[channel] = of_weight;
    a.factors[channel] = scale;
    a.factors[a.channels + channel] = a.rows == 0 ? 0.f : -scale * of_weight * inverse / rows;
    a.factors[2 * (unsigned long long)a.channels + channel] = a.rows == 0 ? 0.f : -scale * a.bias[channel] / rows;
}

extern "C" __global__ void batch_norm_back(const Norm a) {
    unsigned long long i = place();
    if (i >= a.rows * a.channels) return;
    unsigned long long channel = i % a.channels;
    const float* factors = a.factors + channel;
    a.out[i] = a.gradient[i] * factors[0] + (a.input[i] - a.mean[channel]) * factors[a.channels] +
               factors[2 * (unsigned long long)a.channels];
}
