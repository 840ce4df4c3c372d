// Small matrix products whose columns are vectors. A lane is a row of the batch, so that no sum crosses lanes.
#pragma once
#include "vec.h"

namespace {

constexpr int ROWS = 4;  // rows of a tile

// A row-major matrix [rows, depth] as tiles of ROWS rows: [rows / ROWS][depth][ROWS], padded with zeros.
template <class T>
FW_INLINE void pack(T* to, const T* from, Size rows, Size depth, Size row_stride, Size column_stride) {
    for (Size r = 0; r < up(rows, ROWS); r += ROWS)
        for (Size d = 0; d < depth; ++d)
            for (Size k = 0; k < ROWS; ++k)
                *to++ = r + k < rows ? from[(r + k) * row_stride + d * column_stride] : T(0);
}

// sums[k][t] += sum over d of packed[d][k] * columns[d][t]: a tile of K x TILE, for the first K of its ROWS rows.
template <class T, int K>
FW_INLINE void tile_product(Vec<T> (&sums)[K][TILE], const T* packed, const Vec<T>* columns, Size depth) {
    for (Size d = 0; d < depth; ++d) {
        FW_UNROLL for (int k = 0; k < K; ++k) {
            const Vec<T> w = all<T>(packed[d * ROWS + k]);
            FW_UNROLL for (int t = 0; t < TILE; ++t) sums[k][t] += w * columns[d * TILE + t];
        }
    }
}

// Swaps the off-diagonal squares of size s in a square of n vectors of n numbers, for vectors a and b = a + s.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define FW_SHUFFLES 1
#endif
#endif
#ifdef FW_SHUFFLES
template <int n, int s, class V>
FW_INLINE void swap_squares(V& a, V& b) {
#define FW_A(i) ((i) & s ? (i) - s + n : (i))
#define FW_B(i) ((i) & s ? (i) + n : (i) + s)
#define FW_2(of, i) of(i), of(i + 1)
#define FW_4(of, i) FW_2(of, i), FW_2(of, i + 2)
#define FW_8(of, i) FW_4(of, i), FW_4(of, i + 4)
    const V u = a, v = b;
    if constexpr (n == 2) {
        a = __builtin_shufflevector(u, v, FW_2(FW_A, 0));
        b = __builtin_shufflevector(u, v, FW_2(FW_B, 0));
    } else if constexpr (n == 4) {
        a = __builtin_shufflevector(u, v, FW_4(FW_A, 0));
        b = __builtin_shufflevector(u, v, FW_4(FW_B, 0));
    } else if constexpr (n == 8) {
        a = __builtin_shufflevector(u, v, FW_8(FW_A, 0));
        b = __builtin_shufflevector(u, v, FW_8(FW_B, 0));
    } else {
        static_assert(n == 16, "vectors of 2 to 16 numbers");
        a = __builtin_shufflevector(u, v, FW_8(FW_A, 0), FW_8(FW_A, 8));
        b = __builtin_shufflevector(u, v, FW_8(FW_B, 0), FW_8(FW_B, 8));
    }
#undef FW_A
#undef FW_B
#undef FW_2
#undef FW_4
#undef FW_8
}
#endif

// Transposes a square block, of as many vectors as a vector has lanes, in registers.
template <class T>
FW_INLINE void transpose(Vec<T> (&square)[lanes<T>()]) {
    constexpr int L = lanes<T>();
#ifdef FW_SHUFFLES
    FW_UNROLL for (int i = 0; i < L; i += 2) swap_squares<L, 1>(square[i], square[i + 1]);
    if constexpr (L >= 4) {
        FW_UNROLL for (int i = 0; i < L / 2; ++i) {
            const int a = i / 2 * 4 + i % 2;
            swap_squares<L, 2>(square[a], square[a + 2]);
        }
    }
    if constexpr (L >= 8) {
        FW_UNROLL for (int i = 0; i < L / 2; ++i) {
            const int a = i / 4 * 8 + i % 4;
            swap_squares<L, 4>(square[a], square[a + 4]);
        }
    }
    if constexpr (L >= 16) {
        FW_UNROLL for (int i = 0; i < L / 2; ++i) swap_squares<L, 8>(square[i], square[i + 8]);
    }
#else
    Vec<T> turned[L];
    for (int i = 0; i < L; ++i)
        for (int l = 0; l < L; ++l) turned[i][l] = square[l][i];
    for (int i = 0; i < L; ++i) square[i] = turned[i];
#endif
}

// L rows of a matrix [rows, width] as `width` vectors with a row per lane; lanes from `count` on are zeros. The row
// stride may be larger than the width. If a row is at least as long as a vector, the last square overlaps the one
// before it.
template <class T>
FW_INLINE void to_lanes(Vec<T>* to, const T* from, Size width, Size count, Size stride) {
    constexpr int L = lanes<T>();
    if (width < L) {
        T* out = (T*)to;
        for (Size l = 0; l < L; ++l)
            for (Size k = 0; k < width; ++k) out[k * L + l] = l < count ? from[l * stride + k] : T(0);
        return;
    }
    for (Size k = 0; k < width; k += L) {
        const Size first = least(k, width - L);
        Vec<T> square[L];
        FW_UNROLL for (int l = 0; l < L; ++l) {
            square[l] = all<T>(0);
            if (l < count) __builtin_memcpy(&square[l], from + l * stride + first, sizeof(Vec<T>));
        }
        transpose<T>(square);
        FW_UNROLL for (int i = 0; i < L; ++i) to[first + i] = square[i];
    }
}
template <class T>
FW_INLINE void from_lanes(T* to, const Vec<T>* from, Size width, Size count, Size stride) {
    constexpr int L = lanes<T>();
    if (width < L) {
        const T* in = (const T*)from;
        for (Size l = 0; l < count; ++l)
            for (Size k = 0; k < width; ++k) to[l * stride + k] = in[k * L + l];
        return;
    }
    for (Size k = 0; k < width; k += L) {
        const Size first = least(k, width - L);
        Vec<T> square[L];
        FW_UNROLL for (int i = 0; i < L; ++i) square[i] = from[first + i];
        transpose<T>(square);
        FW_UNROLL for (int l = 0; l < L; ++l) {
            if (l < count) __builtin_memcpy(to + l * stride + first, &square[l], sizeof(Vec<T>));
        }
    }
}
template <class T>
FW_INLINE void to_lanes(Vec<T>* to, const T* from, Size width, Size count) {
    to_lanes<T>(to, from, width, count, width);
}
template <class T>
FW_INLINE void from_lanes(T* to, const Vec<T>* from, Size width, Size count) {
    from_lanes<T>(to, from, width, count, width);
}

}  // namespace
