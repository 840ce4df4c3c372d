// AutoInt's interacting layer: its description, its packed weights, and the steps that both passes share.
#pragma once
#include "lane_products.h"

namespace {

enum Residual { NOTHING, PROJECTED, IDENTITY };
enum Norm { NO_NORM, BEFORE_RELU, AFTER_RELU };

template <class T>
struct Layer {
    Size batch, fields, dim, attention, heads;
    Residual residual;
    Norm norm;
    bool relu_on_projections, output_relu;
    T scale, epsilon;        // scale of the scores; epsilon of LayerNorm
    Keep keep;               // dropout of attention weights: element (h * F + f) * F + g of a row
    const T *x, *W;          // [B, F, D], [3A or 4A, D]
    const T *b, *norm_weight, *norm_bias;  // [3A or 4A] or null; [A] each, or null without a norm

    Size head() const { return attention / heads; }
    Size head_rows() const { return up(head(), ROWS); }
    Size sum_row() const { return up(attention, ROWS); }
    Size dim_row() const { return up(dim, lanes<T>()); }
    Size head_numbers() const { return 3 * head_rows(); }
    Size rows() const { return heads * head_numbers() + (residual == PROJECTED ? sum_row() : 0); }
    Size blocks() const { return (batch + lanes<T>() - 1) / lanes<T>(); }
    // First row in W of part p (q, k, v) of head h.
    Size part(Size h, Size p) const { return p * attention + h * head(); }
};

// Hands out memory in pieces of whole cache lines; starting at address 0, it only counts the bytes needed.
struct Space {
    uintptr_t at;
    template <class V>
    V* take(Size n) {
        V* piece = (V*)at;
        at += up(n * Size(sizeof(V)), 64);
        return piece;
    }
};

// The weights in the order in which they are read, with the scale of the scores multiplied into q's. Rows: q, k, v of
// each head, each padded to whole tiles, then the residual's.
template <class M>
struct Weights {
    typedef typename M::Number T;
    typedef typename M::Word Word;
    Word* tiles;   // [rows / 4][words of D][4]
    T* bias;       // [rows]
    Word* panels;  // for the backward pass: the rows of each head and of the residual in panels, in whole words

    Weights(const Layer<T>& c, Space& space, bool backward)
        : tiles(space.take<Word>(c.rows() * words_of<M>(c.dim))), bias(space.take<T>(c.rows())),
          panels(backward ? space.take<Word>(c.rows() * c.dim_row()) : nullptr) {}

    void fill(const Layer<T>& c) const {
        const Size D = c.dim, K = c.head();
        Word* tile = tiles;
        T* add = bias;
        auto put = [&](Size first, Size numbers, T factor) {
            const Size padded = up(numbers, ROWS);
            pack_tiles<M>(tile, c.W + first * D, numbers, D, factor);
            for (Size n = 0; n < padded; ++n) add[n] = c.b && n < numbers ? factor * c.b[first + n] : T(0);
            tile += padded * words_of<M>(D);
            add += padded;
        };
        for (Size h = 0; h < c.heads; ++h)
            for (Size p = 0; p < 3; ++p) put(c.part(h, p), K, p ? T(1) : c.scale);
        if (c.residual == PROJECTED) put(3 * c.attention, c.attention, T(1));
        if (!panels) return;
        const Split across(c.dim_row() / lanes<T>(), TILE);
        Word* panel = panels;
        auto put_panel = [&](Size first, Size numbers, Size q, T factor) {
            pack_panels<M>(panel, c.W + first * D, numbers, D, factor, across.begin(q), across.begin(q + 1));
            panel += words_of<M>(numbers) * (across.begin(q + 1) - across.begin(q)) * lanes<T>();
        };
        for (Size h = 0; h < c.heads; ++h)
            for (Size q = 0; q < across.parts; ++q)
                for (Size p = 0; p < 3; ++p) put_panel(c.part(h, p), K, q, p ? T(1) : c.scale);
        for (Size q = 0; q < across.parts && c.residual == PROJECTED; ++q)
            put_panel(3 * c.attention, c.attention, q, T(1));
    }
};

template <class T, class Term>
FW_INLINE Vec<T> total(Size n, Term term) {
    Vec<T> sums[4] = {};
    Size i = 0;
    for (; i + 4 <= n; i += 4) {
        FW_UNROLL for (int k = 0; k < 4; ++k) sums[k] += term(i + k);
    }
    for (; i < n; ++i) sums[0] += term(i);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
FW_INLINE Vec<T> root(Vec<T> x) {
    for (int l = 0; l < lanes<T>(); ++l)
        x[l] = sizeof(T) == 4 ? T(__builtin_sqrtf(float(x[l]))) : T(__builtin_sqrt(x[l]));
    return x;
}

// The steps that the forward and the backward pass of a block share.
template <class M>
struct Block {
    typedef typename M::Number T;
    typedef typename M::Words Words;
    const Layer<T>& c;
    const Weights<M>& w;
    uint32_t keys[FW_BYTES / 4];

    Block(const Layer<T>& c, const Weights<M>& w, Size first) : c(c), w(w) { c.keep.template keys_of<T>(keys, first); }

    FW_ALONE void project(Vec<T>* out, Size out_row, Size row, Size numbers, const Words* X) const {
        const Split across(c.fields, TILE);
        const Size depth = words_of<M>(c.dim);
        for (Size q = 0; q < across.parts; ++q) {
            const Size f = across.begin(q);
            auto tiles = [&](auto C) {
                for (Size r = 0; r < numbers; r += ROWS)
                    weighted_tile<M, decltype(C)::value>(out + f * out_row + r, out_row, w.tiles + (row + r) * depth,
                                                         w.bias + row + r, X + f * depth, depth, c.relu_on_projections);
            };
            with_number<TILE>(across.begin(q + 1) - f, tiles);
        }
    }

    // q, k and v of a head, each [F][head_rows].
    void project_head(Vec<T>* P, Size h, const Words* X) const {
        const Size Kp = c.head_rows();
        for (Size p = 0; p < 3; ++p) project(P + p * c.fields * Kp, Kp, h * c.head_numbers() + p * Kp, Kp, X);
    }
    void project_residual(Vec<T>* sum, const Words* X) const {
        project(sum, c.sum_row(), c.heads * c.head_numbers(), c.sum_row(), X);
    }

    // The attention weights [n][F] of fields f, f + 1, .. of a head.
    void attend(Vec<T>* a, Vec<T>* P, Size f, Size n) const {
        const Size F = c.fields, Kp = c.head_rows();
        Vec<T>*q = P + f * Kp, *k = P + F * Kp;
        crossed<T>({a, F, 1}, {q, Kp, 1}, {k, Kp, 1}, n, F, c.head());
        for (Size i = 0; i < n; ++i, a += F) {
            Vec<T> most = a[0], sum = all<T>(0);
            for (Size g = 1; g < F; ++g) most = greater_of(most, a[g]);
            for (Size g = 0; g < F; ++g) {
                a[g] = exponential(a[g] - most);
                sum += a[g];
            }
            const Vec<T> share = all<T>(1) / sum;
            for (Size g = 0; g < F; ++g) a[g] *= share;
        }
    }
    FW_MEMBER Vec<T> kept(Size h, Size f, Size g) const {
        return c.keep.factors(keys, (h * c.fields + f) * c.fields + g, T(0));
    }
    void drop(Vec<T>* a, Size h, Size f, Size n) const {
        for (Size i = 0; i < n; ++i)
            for (Size g = 0; g < c.fields; ++g) a[i * c.fields + g] *= kept(h, f + i, g);
    }
    // sum [n][K], a head's part of the sum of fields f, f + 1, ..: weights times v, added to `sum` if `add`.
    void take(Vec<T>* sum, Vec<T>* a, Vec<T>* P, Size h, Size f, Size n, bool add) const {
        const Size Kp = c.head_rows(), S = c.sum_row();
        Vec<T>* v = P + 2 * c.fields * Kp;
        crossed<T>({sum + f * S + h * c.head(), S, 1}, {a, c.fields, 1}, {v, 1, Kp}, n, c.head(),
                   c.fields, add);
    }
    // The sum before norm and ReLU, from x in lanes and as words. If `all_heads`, P and a of every head are kept, one after the other; else both are
    // reused for each head, and a holds the weights of ROWS fields only.
    void attended_sum(Vec<T>* sum, Vec<T>* P, Vec<T>* a, Vec<T>* dropped, const Vec<T>* X, const Words* factors,
                      bool all_heads) const {
        const Size F = c.fields, S = c.sum_row();
        if (c.residual == PROJECTED) project_residual(sum, factors);
        if (c.residual == IDENTITY)
            for (Size f = 0; f < F; ++f)
                for (Size d = 0; d < c.dim; ++d) sum[f * S + d] = X[f * c.dim + d];
        for (Size h = 0; h < c.heads; ++h) {
            project_head(P, h, factors);
            for (Size f = 0; f < F; f += ROWS) {
                const Size n = least(ROWS, F - f);
                Vec<T>*weights = all_heads ? a + f * F : a, *used = weights;
                attend(weights, P, f, n);
                if (c.keep) {
                    if (all_heads) {
                        for (Size i = 0; i < n * F; ++i) dropped[i] = weights[i];
                        used = dropped;
                    }
                    drop(used, h, f, n);
                }
                take(sum, used, P, h, f, n, c.residual != NOTHING);
            }
            if (all_heads) {
                P += 3 * F * c.head_rows();
                a += F * F;
            }
        }
    }

    // Mean and 1 / standard deviation of x [A].
    FW_MEMBER void moments(Vec<T>& mean, Vec<T>& inverse, const Vec<T>* x) const {
        const Vec<T> share = all<T>(T(1) / T(c.attention));
        const Vec<T> m = total<T>(c.attention, [&](Size n) FW_LAMBDA { return x[n]; }) * share;
        const Vec<T> squares = total<T>(c.attention, [&](Size n) FW_LAMBDA { return (x[n] - m) * (x[n] - m); });
        mean = m;
        inverse = all<T>(1) / root<T>(squares * share + all<T>(c.epsilon));
    }
    void finish(Vec<T>* sum) const {
        for (Size f = 0; f < c.fields; ++f, sum += c.sum_row()) {
            if (c.norm == AFTER_RELU) activate(sum);
            if (c.norm != NO_NORM) {
                Vec<T> mean, inverse;
                moments(mean, inverse, sum);
                for (Size n = 0; n < c.attention; ++n)
                    sum[n] = (sum[n] - mean) * inverse * all<T>(c.norm_weight[n]) + all<T>(c.norm_bias[n]);
            }
            if (c.norm != AFTER_RELU) activate(sum);
        }
    }
    FW_MEMBER void activate(Vec<T>* x) const {
        for (Size n = 0; n < c.attention && c.output_relu; ++n) x[n] = relu<T>(x[n]);
    }
    // Conversion of [F][A] in lanes from and to row-major order.
    void load(Vec<T>* to, const T* from, Size count) const {
        const Size width = c.fields * c.attention;
        for (Size f = 0; f < c.fields; ++f)
            to_lanes<T>(to + f * c.sum_row(), from + f * c.attention, c.attention, count, width);
    }
    void store(T* to, const Vec<T>* from, Size count) const {
        const Size width = c.fields * c.attention;
        for (Size f = 0; f < c.fields; ++f)
            from_lanes<T>(to + f * c.attention, from + f * c.sum_row(), c.attention, count, width);
    }
};

}  // namespace
