// Matrix products for blocks in which a lane is a row of the batch, in tiles that stay in registers. There are three
// kinds: a weight times columns of vectors, vectors times vectors (no sum crosses lanes), and two products of a
// backward pass with a row-major result, which read a block of lanes as numbers [depth][L] and multiply each by a row.
#pragma once
#include "tiles.h"

#define FW_LAMBDA __attribute__((always_inline))
#ifdef __SANITIZE_ADDRESS__  // checks in every copy of a tile take minutes to compile
#define FW_TILE FW_ALONE
#else
#define FW_TILE FW_INLINE
#endif

namespace {

// How numbers are multiplied: M::Number is the type of numbers and sums, and M::Word holds M::PAIR factors that are
// multiplied by those of another word and added to one sum. A word's factors are neighbours along the product's depth.
template <class T>
struct Exact {
    typedef T Number;
    typedef T Word;
    typedef Vec<T> Words;
    static constexpr int PAIR = 1;
    static FW_MEMBER Words broadcast(Word word) { return all<T>(word); }
    static FW_MEMBER void add_product(Vec<T>& sum, Words a, Words b) { sum += a * b; }
    static FW_MEMBER Word word(T first, T) { return first; }
    // Vectors [rows][columns], row_stride vectors apart, as words [rows][words_of(columns)]; `to` holds them if needed.
    static FW_MEMBER const Words* words(Words*, const Vec<T>* from, Size, Size, Size) { return from; }
    // Rows [count][width] as words of neighbouring rows [words_of(count)][width].
    static FW_MEMBER const Word* row_pairs(Word*, const T* from, Size, Size) { return from; }
    // Vectors as words of neighbouring lanes [n][L / PAIR].
    static FW_MEMBER const Word* lane_pairs(Word*, const Vec<T>* from, Size) { return (const T*)from; }
};
template <class M>
FW_INLINE Size words_of(Size factors) {
    return (factors + M::PAIR - 1) / M::PAIR;
}

// Splits n elements into the fewest parts of at most `most` elements, whose sizes differ by at most one.
struct Split {
    Size n, parts;
    Split(Size n, Size most) : n(n), parts((n + most - 1) / most) {}
    Size begin(Size i) const { return n * i / parts; }
};

// Calls `run` with n as a compile-time number: run(Number<n>()) for n from 1 to N.
template <int n>
struct Number {
    static constexpr int value = n;
};
template <int N, class Run>
FW_INLINE void with_number(Size n, Run& run) {
    if (n == N) return run(Number<N>());
    if constexpr (N > 1) with_number<N - 1>(n, run);
}

// out[f][r] = sum over d of w[r][d] * x[f][d] + bias[r], followed by a ReLU if `active`: ROWS numbers of C fields. The
// depth is in words.
template <class M, int C>
FW_TILE void weighted_tile(Vec<typename M::Number>* out, Size out_row, const typename M::Word* w,
                           const typename M::Number* bias, const typename M::Words* x, Size depth, bool active) {
    typedef typename M::Number T;
    Vec<T> sums[ROWS][C];
    FW_UNROLL for (int k = 0; k < ROWS; ++k) {
        FW_UNROLL for (int t = 0; t < C; ++t) sums[k][t] = all<T>(bias[k]);
    }
    for (Size d = 0; d < depth; ++d) {
        FW_UNROLL for (int k = 0; k < ROWS; ++k) {
            const typename M::Words weight = M::broadcast(w[d * ROWS + k]);
            FW_UNROLL for (int t = 0; t < C; ++t) M::add_product(sums[k][t], weight, x[t * depth + d]);
        }
    }
    FW_UNROLL for (int t = 0; t < C; ++t) {
        FW_UNROLL for (int k = 0; k < ROWS; ++k) out[t * out_row + k] = active ? relu<T>(sums[k][t]) : sums[k][t];
    }
}

// A row-major matrix [rows, depth] times a factor, as tiles of ROWS rows: [rows / ROWS][words of depth][ROWS], padded
// with zeros.
template <class M, class T>
FW_INLINE void pack_tiles(typename M::Word* to, const T* from, Size rows, Size depth, T factor) {
    auto number = [&](Size r, Size d) FW_LAMBDA {
        return r < rows && d < depth ? factor * from[r * depth + d] : T(0);
    };
    for (Size r = 0; r < rows; r += ROWS)
        for (Size d = 0; d < depth; d += M::PAIR)
            for (Size k = 0; k < ROWS; ++k) *to++ = M::word(number(r + k, d), number(r + k, d + 1));
}

// A view of vectors [rows][columns] with two strides.
template <class T>
struct View {
    Vec<T>* at;
    Size row, column;
};

// out[i][j] = sum over d of a[i][d] * b[j][d]. `add`: the sum is added to out. `gated`: out is 0 where `gate` is not
// above 0 (`gate` has the layout of out, and may be out itself).
template <class T, int R, int C>
FW_TILE void crossed_tile(View<T> out, View<T> a, View<T> b, Size depth, bool add, const Vec<T>* gate) {
    Vec<T> sums[R][C];
    FW_UNROLL for (int i = 0; i < R; ++i) {
        FW_UNROLL for (int j = 0; j < C; ++j) sums[i][j] = add ? out.at[i * out.row + j * out.column] : all<T>(0);
    }
    const Vec<T>*u = a.at, *v = b.at;
    for (Size d = 0; d < depth; ++d) {
        Vec<T> right[C];
        FW_UNROLL for (int j = 0; j < C; ++j) right[j] = v[j * b.row];
        FW_UNROLL for (int i = 0; i < R; ++i) {
            const Vec<T> left = u[i * a.row];
            FW_UNROLL for (int j = 0; j < C; ++j) sums[i][j] += left * right[j];
        }
        u += a.column;
        v += b.column;
    }
    FW_UNROLL for (int i = 0; i < R; ++i) {
        FW_UNROLL for (int j = 0; j < C; ++j) {
            const Size n = i * out.row + j * out.column;
            out.at[n] = gate ? (gate[n] <= all<T>(0) ? all<T>(0) : sums[i][j]) : sums[i][j];
        }
    }
}

template <class T>
FW_ALONE void crossed(View<T> out, View<T> a, View<T> b, Size rows, Size columns, Size depth, bool add = false,
                      const Vec<T>* gate = nullptr) {
    const Split over(rows, ROWS), across(columns, TILE);
    for (Size p = 0; p < over.parts; ++p) {
        const Size i = over.begin(p), R = over.begin(p + 1) - i;
        for (Size q = 0; q < across.parts; ++q) {
            const Size j = across.begin(q), C = across.begin(q + 1) - j, at = i * out.row + j * out.column;
            auto rows_known = [&](auto r) {
                auto both_known = [&](auto c) {
                    crossed_tile<T, decltype(r)::value, decltype(c)::value>(
                        {out.at + at, out.row, out.column}, {a.at + i * a.row, a.row, a.column},
                        {b.at + j * b.row, b.row, b.column}, depth, add, gate ? gate + at : nullptr);
                };
                with_number<TILE>(C, both_known);
            };
            with_number<ROWS>(R, rows_known);
        }
    }
}

// A matrix [rows, width] in panels of at most TILE vectors of columns, each [words of rows][vectors][L], padded with
// zeros.
template <class M, class T>
FW_INLINE void pack_panels(typename M::Word* to, const T* from, Size rows, Size width, T factor, Size panel_begin,
                           Size panel_end) {
    auto number = [&](Size r, Size d) FW_LAMBDA {
        return r < rows && d < width ? factor * from[r * width + d] : T(0);
    };
    for (Size r = 0; r < rows; r += M::PAIR)
        for (Size d = panel_begin * lanes<T>(); d < panel_end * lanes<T>(); ++d)
            *to++ = M::word(number(r, d), number(r + 1, d));
}

constexpr Size GROUP = 4;  // lanes per tile of spread_tile (fewer if a vector has fewer lanes)

// to[l][d] += sum over parts s and k of g[s][k][l] * w[s][k][d] for GROUP rows of a block (from lane `l`), C vectors.
// The depth is in words.
template <class M, int C>
FW_TILE void spread_tile(typename M::Number* to, Size to_row, const typename M::Word* const* g, Size parts,
                         const typename M::Word* w, Size depth) {
    typedef typename M::Number T;
    typedef typename M::Words Words;
    constexpr int L = lanes<T>(), R = L < GROUP ? L : int(GROUP);
    Vec<T> sums[R][C];
    FW_UNROLL for (int i = 0; i < R; ++i) {
        FW_UNROLL for (int c = 0; c < C; ++c) __builtin_memcpy(&sums[i][c], to + i * to_row + c * L, sizeof(Vec<T>));
    }
    for (Size s = 0; s < parts; ++s) {
        const typename M::Word* from = g[s];
        for (Size k = 0; k < depth; ++k, w += C * L) {
            Words row[C];
            FW_UNROLL for (int c = 0; c < C; ++c) row[c] = *(const Words*)(w + c * L);
            FW_UNROLL for (int i = 0; i < R; ++i) {
                const Words number = M::broadcast(from[k * L + i]);
                FW_UNROLL for (int c = 0; c < C; ++c) M::add_product(sums[i][c], number, row[c]);
            }
        }
    }
    FW_UNROLL for (int i = 0; i < R; ++i) {
        FW_UNROLL for (int c = 0; c < C; ++c) __builtin_memcpy(to + i * to_row + c * L, &sums[i][c], sizeof(Vec<T>));
    }
}

// sums[k][d] += sum over fields f and rows l of g[f][k][l] * x[l][f][d] for ROWS numbers k and C vectors of d. Words are
// of neighbouring rows, `count` of them; g_field and x's strides are in words.
template <class M, int C>
FW_TILE void gathered_tile(typename M::Number* to, Size to_row, const typename M::Word* g, Size g_field,
                           const typename M::Word* x, Size x_row, Size x_field, Size fields, Size count) {
    typedef typename M::Number T;
    typedef typename M::Words Words;
    constexpr int L = lanes<T>(), G = L / M::PAIR;
    Vec<T> sums[ROWS][C];
    FW_UNROLL for (int k = 0; k < ROWS; ++k) {
        FW_UNROLL for (int c = 0; c < C; ++c) sums[k][c] = *(const Vec<T>*)(to + k * to_row + c * L);
    }
    for (Size f = 0; f < fields; ++f) {
        for (Size l = 0; l < count; ++l) {
            Words row[C];
            FW_UNROLL for (int c = 0; c < C; ++c)
                __builtin_memcpy(&row[c], x + l * x_row + f * x_field + c * L, sizeof(Words));
            FW_UNROLL for (int k = 0; k < ROWS; ++k) {
                const Words number = M::broadcast(g[f * g_field + k * G + l]);
                FW_UNROLL for (int c = 0; c < C; ++c) M::add_product(sums[k][c], number, row[c]);
            }
        }
    }
    FW_UNROLL for (int k = 0; k < ROWS; ++k) {
        FW_UNROLL for (int c = 0; c < C; ++c) *(Vec<T>*)(to + k * to_row + c * L) = sums[k][c];
    }
}

}  // namespace
