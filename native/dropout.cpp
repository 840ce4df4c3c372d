// Dropout of the elements of rows. The mask is a hash of (seed, row, element), so it is not stored, and the backward
// pass is the same map applied to the gradient. Sampling a mask with PyTorch's generator takes ten times as long.
#include "parallel.h"
#include "vec.h"

namespace {

constexpr Size SLICES = 64;         // slices of the rows
constexpr uint32_t STEP = 0x9E3779B9u;  // 2^32 / golden ratio, as in fieldwise.ops.keep

template <class T>
FW_INLINE T factor_of(const Keep& keep, uint32_t state) {
    return (mixed<uint32_t>(state) >> 8) < keep.threshold ? T(0) : T(keep.factor);
}

void drop_row(const Keep& keep, uint32_t key, Size width, const float* x, float* out) {
    typedef UVec<float> U;
    constexpr Size L = lanes<float>();
    U state;
    for (Size l = 0; l < L; ++l) state[l] = key + uint32_t(l) * STEP;
    Size n = 0;
    for (; n + L <= width; n += L, state += uint32_t(L) * STEP) {
        Vec<float> v;
        __builtin_memcpy(&v, x + n, sizeof v);
        v *= (mixed<U>(state) >> 8) < keep.threshold ? all<float>(0) : all<float>(float(keep.factor));
        __builtin_memcpy(out + n, &v, sizeof v);
    }
    for (; n < width; ++n) out[n] = x[n] * factor_of<float>(keep, key + uint32_t(n) * STEP);
}
void drop_row(const Keep& keep, uint32_t key, Size width, const double* x, double* out) {
    for (Size n = 0; n < width; ++n) out[n] = x[n] * factor_of<double>(keep, key + uint32_t(n) * STEP);
}

template <class T>
int drop(int threads, Size rows, Size width, const Keep& keep, const T* x, T* out) {
    threads = worth(threads, rows * width);
    const Size slices = rows < SLICES ? rows : SLICES;
    auto body = [&](Size k) {
        for (Size r = rows * k / slices; r < rows * (k + 1) / slices; ++r)
            drop_row(keep, row_key(keep.seed, r), width, x + r * width, out + r * width);
    };
    parallel(slices, threads, body);
    return 0;
}

}  // namespace

#define FW_DROPOUT(T)                                                                                               \
    FW_EXPORT int FW_NAME(fw_dropout_##T)(int threads, Size rows, Size width, uint64_t seed, uint32_t threshold,    \
                                          double factor, const T* x, T* out) {                                      \
        return drop<T>(threads, rows, width, {seed, threshold, factor}, x, out);                                    \
    }

FW_DROPOUT(float)
FW_DROPOUT(double)
