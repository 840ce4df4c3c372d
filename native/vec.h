// A vector of float or double with the machine's width, by the compilers' portable vector extensions (GCC, Clang).
//
// Every kernel file is compiled once for each instruction set, with FW_ISA as its name and FW_BYTES as its vector
// width. Exported functions have the name as a suffix, and fieldwise.ops.native binds those of the best set that the
// machine supports. Nothing here may have external linkage, including templates and inline functions of the standard
// library: the linker would keep one copy for all sets, and a machine without AVX-512 might execute that one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FW_JOIN_(a, b) a##_##b
#define FW_JOIN(a, b) FW_JOIN_(a, b)
#define FW_EXPORT extern "C" __attribute__((visibility("default")))
#define FW_NAME(name) FW_JOIN(name, FW_ISA)
#define FW_INLINE static inline __attribute__((always_inline))
#define FW_MEMBER inline __attribute__((always_inline))
#define FW_ALONE __attribute__((noinline))
#define FW_UNROLL _Pragma("GCC unroll 16")

namespace {

typedef int64_t Size;

template <class T>
struct VecOf;
template <>
struct VecOf<float> {
    typedef float V __attribute__((vector_size(FW_BYTES)));
    typedef uint32_t U __attribute__((vector_size(FW_BYTES)));
    typedef uint32_t Word;
};
template <>
struct VecOf<double> {
    typedef double V __attribute__((vector_size(FW_BYTES)));
    typedef uint64_t U __attribute__((vector_size(FW_BYTES)));
    typedef uint64_t Word;
};
template <class T>
using Vec = typename VecOf<T>::V;
template <class T>
using UVec = typename VecOf<T>::U;

template <class T>
constexpr int lanes() {
    return FW_BYTES / int(sizeof(T));
}

// Vectors of columns that a tile of four rows keeps in registers with its operands: 16 registers hold 4 x 3 sums, 32
// hold 4 x 6.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int TILE = 6;
#else
constexpr int TILE = 3;
#endif

template <class T>
FW_INLINE Vec<T> all(T value) {
    return value - Vec<T>{};  // x - 0 equals x for every x, so this compiles to one broadcast (0 + x differs for -0)
}

// ReLU that returns NaN for NaN, as PyTorch's does.
template <class T>
FW_INLINE Vec<T> relu(Vec<T> x) {
    return x < all<T>(0) ? all<T>(0) : x;
}
#if defined(__AVX512F__) && FW_BYTES == 64
template <>
inline __attribute__((always_inline)) Vec<float> relu<float>(Vec<float> x) {
    // Returns the second operand if one of them is NaN.
#if defined(__clang__)
    return __builtin_ia32_maxps512(Vec<float>{}, x, 4);
#else
    return __builtin_ia32_maxps512_mask(Vec<float>{}, x, Vec<float>{}, -1, 4);
#endif
}
#elif defined(__AVX2__) && FW_BYTES == 32
template <>
inline __attribute__((always_inline)) Vec<float> relu<float>(Vec<float> x) {
    return __builtin_ia32_maxps256(Vec<float>{}, x);  // returns the second operand if one of them is NaN
}
#endif
template <class V>
FW_INLINE V greater_of(V a, V b) {
    return a > b ? a : b;
}

template <class T>
FW_INLINE T sum_lanes(Vec<T> x) {
    T sum = 0;
    for (int l = 0; l < lanes<T>(); ++l) sum += x[l];
    return sum;
}

template <class T>
FW_INLINE bool any_lane(UVec<T> mask) {
    typename VecOf<T>::Word any = 0;
    for (int l = 0; l < lanes<T>(); ++l) any |= mask[l];
    return any != 0;
}

// e^x within 2 units in the last place for x up to 88, infinite above; NaN stays NaN, subnormal results are 0.
FW_INLINE Vec<float> exponential(Vec<float> x) {
    typedef Vec<float> V;
    typedef UVec<float> U;
    const V low = all<float>(-87.3f), high = all<float>(88.7f);
    V c = x < low ? low : x;
    c = c > high ? high : c;
    const V magic = all<float>(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
    const V t = c * 1.44269504f + magic;
    const V n = t - magic;
    V r = c - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    V p = all<float>(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const U scale = ((U)t - (U)magic + 127u) << 23;
    p = p * (V)scale;
    return x < low ? all<float>(0) : p;
}
FW_INLINE Vec<double> exponential(Vec<double> x) {
    Vec<double> y = x;
    for (int l = 0; l < lanes<double>(); ++l) y[l] = __builtin_exp(x[l]);
    return y;
}

// Dropout without a stored mask: a hash of (seed, r, n) decides whether element n of row r is kept, as in
// fieldwise.ops.keep. The arithmetic is 32-bit, with two rounds of a well-mixing integer hash.
template <class U>
FW_INLINE U mixed(U x) {
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x *= 0xd35a2d97u;
    x ^= x >> 15;
    return x;
}
FW_INLINE uint32_t row_key(uint64_t seed, Size row) {
    return mixed<uint32_t>(mixed<uint32_t>(uint32_t(row) + uint32_t(seed)) ^ uint32_t(seed >> 32));
}
struct Keep {
    uint64_t seed;
    uint32_t threshold;  // elements whose 24-bit hash is below it are dropped; 0: no dropout
    double factor;       // factor of the kept elements

    explicit operator bool() const { return threshold != 0; }
    FW_MEMBER Vec<float> factors(const uint32_t* keys, Size n, float) const {
        typedef UVec<float> U;
        U key;
        __builtin_memcpy(&key, keys, sizeof key);
        const U draw = mixed<U>(key + uint32_t(n) * 0x9E3779B9u) >> 8;
        return draw < threshold ? all<float>(0) : all<float>(float(factor));
    }
    FW_MEMBER Vec<double> factors(const uint32_t* keys, Size n, double) const {
        Vec<double> out;
        for (int l = 0; l < lanes<double>(); ++l)
            out[l] = (mixed<uint32_t>(keys[l] + uint32_t(n) * 0x9E3779B9u) >> 8) < threshold ? 0.0 : factor;
        return out;
    }
    template <class T>
    FW_MEMBER void keys_of(uint32_t* keys, Size first_row) const {
        for (int l = 0; l < lanes<T>(); ++l) keys[l] = row_key(seed, first_row + l);
    }
};

struct Scratch {
    void* memory;
    explicit Scratch(size_t bytes) : memory(__builtin_malloc(bytes + 64)) {}
    ~Scratch() { __builtin_free(memory); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    void* begin() const { return (void*)(((uintptr_t)memory + 63) & ~uintptr_t(63)); }
};

// Reports that a thread could not allocate memory; several threads may call it.
FW_INLINE void report(bool& failed) { __atomic_store_n(&failed, true, __ATOMIC_RELAXED); }

FW_INLINE Size least(Size a, Size b) { return a < b ? a : b; }
FW_INLINE Size most(Size a, Size b) { return a > b ? a : b; }
FW_INLINE Size up(Size n, Size unit) { return (n + unit - 1) / unit * unit; }

}  // namespace
