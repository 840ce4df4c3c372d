// The library links no OpenMP runtime: a second one beside PyTorch's would fight for the cores. fieldwise.ops.native
// finds PyTorch's and hands its GOMP_parallel over (libgomp, LLVM's and Intel's all have it); without it, one thread
// does all.
#include "parallel.h"

typedef void (*Region)(void (*)(void*), void*, unsigned, unsigned);
static Region region = nullptr;

extern "C" __attribute__((visibility("default"))) void fw_use_openmp(void* gomp_parallel) {
    region = (Region)gomp_parallel;
}

// Raised with every change of an exported function: fieldwise.ops.native refuses a library of another number.
extern "C" __attribute__((visibility("default"))) int fw_version() { return 2; }

extern "C" __attribute__((visibility("default"))) int fw_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

namespace {
struct Work {
    int64_t next, slices;
    void (*body)(void*, int64_t);
    void* context;
};
void take(void* shared) {
    Work* work = static_cast<Work*>(shared);
    for (;;) {
        const int64_t k = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (k >= work->slices) return;
        work->body(work->context, k);
    }
}
}  // namespace

extern "C" void fw_parallel(int64_t slices, int threads, void (*body)(void*, int64_t), void* context) {
    Work work = {0, slices, body, context};
    if (region && threads > 1 && slices > 1)
        region(take, &work, unsigned(threads < slices ? threads : slices), 0);
    else
        take(&work);
}
