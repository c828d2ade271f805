// A thread per value of a picked row. Tables lie one below the other:
//     while row >= rows of the table: row -= rows of the table; next table
#include "tables.cuh"

#define TABLES 8

struct Rows {
    const unsigned* rows;
    float* values;       // picked, or the gradient of what was picked
    unsigned per_image;  // rows picked
    unsigned width;
    unsigned n;
    unsigned unused;
};

// The value of a table behind the i-th picked one; null for a row below all tables. Lengths are those of one image.
__device__ __forceinline__ float* find(const Table& tables, const Rows& a, unsigned i) {
    unsigned picked = i / a.width, row = a.rows[picked];
    for (unsigned table = 0; table < TABLES; table++) {
        unsigned length = tables.lengths[table];
        if (row < length) {
            float* values = (float*)tables.pointers[table];
            size_t place = (size_t)(picked / a.per_image) * length + row;
            return values ? values + place * a.width + i % a.width : nullptr;
        }
        row -= length;
    }
    return nullptr;
}

extern "C" __global__ void gather_rows(const Table tables, const Rows a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    const float* value = find(tables, a, i);
    a.values[i] = value ? *value : nanf("");
}

// The way back. Rows are picked once as a rule, so that additions don't meet; those of empty slots add zero.
extern "C" __global__ void gather_rows_scatter(const Table tables, const Rows a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    float* value = find(tables, a, i);
    if (value) atomicAdd(value, a.values[i]);
}
