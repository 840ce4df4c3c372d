// The library links no OpenMP runtime: a second one besides PyTorch's would compete for the cores. fieldwise.ops.native
// finds PyTorch's runtime and passes its GOMP_parallel (libgomp, LLVM's and Intel's all have it); without it, the
// library uses one thread.
#include "parallel.h"

typedef void (*Region)(void (*)(void*), void*, unsigned, unsigned);
static Region region = nullptr;

extern "C" __attribute__((visibility("default"))) void fw_use_openmp(void* gomp_parallel) {
    region = (Region)gomp_parallel;
}

// Increased with every change of an exported function: fieldwise.ops.native refuses a library with another number.
extern "C" __attribute__((visibility("default"))) int fw_version() { return 5; }

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

// Whether the kernels with products in bfloat16 (those of avx512 only) were built and run on this machine.
extern "C" __attribute__((visibility("default"))) int fw_bfloat16() {
#if defined(FW_BFLOAT16)
    return fw_isa() == 2 && __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
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

namespace {
void set_flush(void* flush) {
#if defined(__x86_64__)
    const unsigned both = 0x8040;  // MXCSR: results (FTZ) and operands (DAZ)
    const unsigned now = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(*static_cast<int*>(flush) ? now | both : now & ~both);
#elif defined(__aarch64__)
    const uint64_t both = uint64_t(1) << 24;  // FPCR.FZ
    uint64_t now;
    asm volatile("mrs %0, fpcr" : "=r"(now));
    now = *static_cast<int*>(flush) ? now | both : now & ~both;
    asm volatile("msr fpcr, %0" : : "r"(now));
#else
    (void)flush;
#endif
}
}  // namespace

// Sets for each of PyTorch's threads whether denormal numbers are flushed to zero. This is a setting of each thread,
// and PyTorch's set_flush_denormal does not change threads that already exist.
extern "C" __attribute__((visibility("default"))) void fw_flush_denormals(int threads, int flush) {
    if (region && threads > 1)
        region(set_flush, &flush, unsigned(threads), 0);
    else
        set_flush(&flush);
}

extern "C" void fw_parallel(int64_t slices, int threads, void (*body)(void*, int64_t), void* context) {
    Work work = {0, slices, body, context};
    if (region && threads > 1 && slices > 1)
        region(take, &work, unsigned(threads < slices ? threads : slices), 0);
    else
        take(&work);
}
