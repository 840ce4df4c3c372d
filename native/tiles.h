// Small matrix products whose columns are vectors of rows: a lane is a row of the batch, so that no sum crosses lanes.
#pragma once
#include "vec.h"

namespace {

constexpr int ROWS = 4;  // rows of a tile

// A matrix [rows, depth], row-major, as tiles of ROWS rows: [rows / ROWS][depth][ROWS], zeros beyond its end.
template <class T>
FW_INLINE void pack(T* to, const T* from, Size rows, Size depth, Size row_stride, Size column_stride) {
    for (Size r = 0; r < up(rows, ROWS); r += ROWS)
        for (Size d = 0; d < depth; ++d)
            for (Size k = 0; k < ROWS; ++k)
                *to++ = r + k < rows ? from[(r + k) * row_stride + d * column_stride] : T(0);
}

// sums[k][t] += sum over d of packed[d][k] * columns[d][t]: one tile of ROWS x TILE.
template <class T>
FW_INLINE void tile_product(Vec<T> (&sums)[ROWS][TILE], const T* packed, const Vec<T>* columns, Size depth) {
    for (Size d = 0; d < depth; ++d) {
        FW_UNROLL for (int k = 0; k < ROWS; ++k) {
            const Vec<T> w = all<T>(packed[d * ROWS + k]);
            FW_UNROLL for (int t = 0; t < TILE; ++t) sums[k][t] += w * columns[d * TILE + t];
        }
    }
}

// L rows of a matrix [rows, width] as width vectors, a lane a row; lanes from `count` on are zeros.
template <class T>
FW_INLINE void to_lanes(Vec<T>* to, const T* from, Size width, Size count) {
    T* out = (T*)to;
    for (Size l = 0; l < lanes<T>(); ++l)
        for (Size k = 0; k < width; ++k) out[k * lanes<T>() + l] = l < count ? from[l * width + k] : T(0);
}
template <class T>
FW_INLINE void from_lanes(T* to, const Vec<T>* from, Size width, Size count) {
    const T* in = (const T*)from;
    for (Size l = 0; l < count; ++l)
        for (Size k = 0; k < width; ++k) to[l * width + k] = in[k * lanes<T>() + l];
}

}  // namespace
