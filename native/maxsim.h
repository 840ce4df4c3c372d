// Code shared by MaxSim's kernels: user heads in lanes, and their products with item heads.
//
// A lane is a user head. A tile holds the sums of a few item heads with a few vectors of user heads in registers, so
// that the maximum over item heads is elementwise, and only the final sum of a row or item crosses lanes. A tile is a
// separate function: if it were inlined, its sums would not stay in registers.
#pragma once
#include "tiles.h"

namespace {

template <class T>
using IVec = decltype(Vec<T>{} > Vec<T>{});  // result of a comparison: lanes of all ones or zeros

template <class V, class T>
FW_INLINE V loaded(const T* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

// User heads in groups of at most TILE vectors of nearly equal size; a group is stored as columns [P][vectors].
template <class T>
struct Groups {
    Size heads, vectors, count;

    explicit Groups(Size heads) : heads(heads), vectors((heads + lanes<T>() - 1) / lanes<T>()) {
        count = (vectors + TILE - 1) / TILE;
    }
    Size first(Size group) const { return vectors * group / count; }  // first vector of a group
    Size width(Size group) const { return first(group + 1) - first(group); }
    // All ones in the lanes of vector v that hold heads.
    FW_MEMBER IVec<T> real(Size v) const {
        IVec<T> mask;
        for (int l = 0; l < lanes<T>(); ++l) mask[l] = v * lanes<T>() + l < heads ? -1 : 0;
        return mask;
    }
};

// Rows [heads][P] of one user as groups of columns; lanes after the last head hold zeros.
template <class T>
FW_INLINE void to_columns(Vec<T>* to, const T* from, const Groups<T>& groups, Size P) {
    constexpr Size L = lanes<T>();
    for (Size group = 0; group < groups.count; to += P * groups.width(group), ++group) {
        const Size N = groups.width(group);
        for (Size t = 0; t < N; ++t) {
            const Size head = (groups.first(group) + t) * L, count = least(L, groups.heads - head);
            Size p = 0;
            if (count == L) {
                for (; p + L <= P; p += L) {
                    Vec<T> block[L];
                    FW_UNROLL for (int l = 0; l < L; ++l) block[l] = loaded<Vec<T>>(from + (head + l) * P + p);
                    transpose<T>(block);
                    FW_UNROLL for (int l = 0; l < L; ++l) to[(p + l) * N + t] = block[l];
                }
            }
            for (; p < P; ++p) {
                T* out = (T*)(to + p * N + t);
                for (Size l = 0; l < L; ++l) out[l] = l < count ? from[(head + l) * P + p] : T(0);
            }
        }
    }
}

// sums[k][t]: inner products of R item heads with N vectors of user heads.
template <class T, int R, int N>
FW_INLINE void products(Vec<T> (&sums)[R][N], const T* items, const Vec<T>* columns, Size P) {
    FW_UNROLL for (int k = 0; k < R; ++k) {
        FW_UNROLL for (int t = 0; t < N; ++t) sums[k][t] = Vec<T>{};
    }
    for (Size p = 0; p < P; ++p) {
        FW_UNROLL for (int k = 0; k < R; ++k) {
            const Vec<T> w = all<T>(items[k * P + p]);
            FW_UNROLL for (int t = 0; t < N; ++t) sums[k][t] += w * columns[p * N + t];
        }
    }
}

// Calls body(Width<n>()), n from 1 to TILE.
template <int N>
struct Width {
    static constexpr int value = N;
};
template <int N = 1, class Body>
FW_INLINE void with_width(Size n, const Body& body) {
    if constexpr (N < TILE) {
        if (n != N) return with_width<N + 1>(n, body);
    }
    body(Width<N>());
}

}  // namespace
