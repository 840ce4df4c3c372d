// Runs work in slices on PyTorch's OpenMP threads.
#pragma once
#include <stdint.h>

// Runs body(context, k) once for each k below slices, on at most `threads` threads; returns when all are done. The
// assignment of slices to threads is not fixed, so a sum must be kept per slice and added in slice order.
extern "C" void fw_parallel(int64_t slices, int threads, void (*body)(void*, int64_t), void* context);

namespace {
// The number of threads worth using for work on a given count of numbers: waking a thread takes as long as about 2^18.
static inline int worth(int threads, int64_t numbers) {
    const int64_t most = 1 + numbers / (1 << 18);
    return most < threads ? int(most) : threads;
}

template <class Body>
static inline void parallel(int64_t slices, int threads, Body& body) {
    fw_parallel(slices, threads, [](void* context, int64_t k) { (*static_cast<Body*>(context))(k); }, &body);
}
}  // namespace
