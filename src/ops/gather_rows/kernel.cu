// A thread per value of a picked row. Tables lie one below the other:
//     while row >= rows of the table: row -= rows of the table; next table
#include "tables.cuh"

#define TABLES 8

struct Found {
    float* table;
    unsigned row;
};

// Null for a row below all tables.
__device__ __forceinline__ Found find(const Table& tables, unsigned row) {
    for (unsigned i = 0; i < TABLES; i++) {
        if (row < tables.lengths[i]) return {(float*)tables.pointers[i], row};
        row -= tables.lengths[i];
    }
    return {nullptr, row};
}

extern "C" __global__ void gather_rows(const Table tables, const unsigned* rows, unsigned width, unsigned n, float* out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Found found = find(tables, rows[i / width]);
    out[i] = found.table ? found.table[(size_t)found.row * width + i % width] : nanf("");
}

// The way back. Rows are picked once as a rule, so that additions don't meet.
extern "C" __global__ void gather_rows_scatter(const Table tables, const unsigned* rows, unsigned width, unsigned n,
                                               const float* gradient) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Found found = find(tables, rows[i / width]);
    if (found.table) atomicAdd(found.table + (size_t)found.row * width + i % width, gradient[i]);
}
