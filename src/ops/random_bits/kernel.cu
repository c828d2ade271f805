// A thread per number; the twin of support/random.rs.
__device__ __forceinline__ unsigned long long mix(unsigned long long z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

extern "C" __global__ void random_bits(unsigned long long seed, unsigned* bits, unsigned long long n) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) bits[i] = (unsigned)(mix(seed + (i + 1) * 0x9e3779b97f4a7c15ull) >> 32);
}
