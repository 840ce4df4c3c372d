// Work in slices over PyTorch's own OpenMP threads.
#pragma once
#include <stdint.h>

// Runs body(context, k) once for each k below slices, on at most `threads` threads; returns when all are done. Which
// thread takes which slice is open, so a sum must be kept by slice and added in the slices' order.
extern "C" void fw_parallel(int64_t slices, int threads, void (*body)(void*, int64_t), void* context);

namespace {
// How many threads pay for work on so many numbers: waking one takes as long as some 2^18 of them.
static inline int worth(int threads, int64_t numbers) {
    const int64_t most = 1 + numbers / (1 << 18);
    return most < threads ? int(most) : threads;
}

template <class Body>
static inline void parallel(int64_t slices, int threads, Body& body) {
    fw_parallel(slices, threads, [](void* context, int64_t k) { (*static_cast<Body*>(context))(k); }, &body);
}
}  // namespace
