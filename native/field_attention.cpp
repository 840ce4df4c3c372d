// AutoInt's interacting layer (Song et al., CIKM 2019, Equations 5 to 8), forward and backward: projections, attention of
// the fields of a row to one another, residual, LayerNorm and ReLU.
//
// A block is as many rows as a vector has lanes. Its fields are projected for one head at a time, attended to and added
// to the sum [F][A], all in cache; nothing of the size of the projections or the attention's weights is ever stored: the
// backward pass computes them again.
#include "lane_products.h"
#include "parallel.h"

namespace {

constexpr Size SLICES = 32;  // of a batch: what is summed over rows is summed by slice, then in their order
enum Residual { NOTHING, PROJECTED, IDENTITY };
enum Norm { NO_NORM, BEFORE_RELU, AFTER_RELU };

template <class T>
struct Layer {
    Size batch, fields, dim, attention, heads;
    Residual residual;
    Norm norm;
    bool relu_on_projections, output_relu;
    T scale, epsilon;        // of the scores; of LayerNorm
    Keep keep;               // of weights: element (h * F + f) * F + g of a row
    const T *x, *W;          // [B, F, D], [3A or 4A, D]
    const T *b, *gain, *shift;  // [3A or 4A] or null; [A], or null where there is no norm

    Size head() const { return attention / heads; }
    Size head_rows() const { return up(head(), ROWS); }
    Size sum_row() const { return up(attention, ROWS); }
    Size dim_row() const { return up(dim, lanes<T>()); }
    Size head_numbers() const { return 3 * head_rows(); }
    Size rows() const { return heads * head_numbers() + (residual == PROJECTED ? sum_row() : 0); }
    Size blocks() const { return (batch + lanes<T>() - 1) / lanes<T>(); }
    // Where W's rows of part p (q, k, v) of head h begin.
    Size part(Size h, Size p) const { return p * attention + h * head(); }
};

// Memory handed out in pieces of whole cache lines; from 0 on, it only counts.
struct Space {
    uintptr_t at;
    template <class V>
    V* take(Size n) {
        V* piece = (V*)at;
        at += up(n * Size(sizeof(V)), 64);
        return piece;
    }
};

// The weights in the order in which they are read; scores are scaled here, in q's. Rows: of each head q, k, v, each
// padded to whole tiles, then the residual's.
template <class T>
struct Weights {
    T *tiles, *bias;  // [rows / 4][D][4], [rows]
    T* panels;        // backward: of each head, and of the residual, panels of its rows without padding

    Weights(const Layer<T>& c, Space& space, bool backward)
        : tiles(space.take<T>(c.rows() * c.dim)), bias(space.take<T>(c.rows())),
          panels(backward ? space.take<T>(c.rows() * c.dim_row()) : nullptr) {}

    void fill(const Layer<T>& c) const {
        const Size D = c.dim, K = c.head();
        T *tile = tiles, *add = bias;
        auto put = [&](Size first, Size numbers, T factor) {
            const Size padded = up(numbers, ROWS);
            pack(tile, c.W + first * D, numbers, D, D, Size(1));
            for (Size n = 0; n < padded * D; ++n) tile[n] *= factor;
            for (Size n = 0; n < padded; ++n) add[n] = c.b && n < numbers ? factor * c.b[first + n] : T(0);
            tile += padded * D;
            add += padded;
        };
        for (Size h = 0; h < c.heads; ++h)
            for (Size p = 0; p < 3; ++p) put(c.part(h, p), K, p ? T(1) : c.scale);
        if (c.residual == PROJECTED) put(3 * c.attention, c.attention, T(1));
        if (!panels) return;
        const Split across(c.dim_row() / lanes<T>(), TILE);
        T* panel = panels;
        auto put_panel = [&](Size first, Size numbers, Size q, T factor) {
            pack_panels(panel, c.W + first * D, numbers, D, factor, across.begin(q), across.begin(q + 1));
            panel += numbers * (across.begin(q + 1) - across.begin(q)) * lanes<T>();
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
    for (int l = 0; l < lanes<T>(); ++l) x[l] = sizeof(T) == 4 ? T(__builtin_sqrtf(float(x[l]))) : T(__builtin_sqrt(x[l]));
    return x;
}

// What a forward block and a backward one do alike.
template <class T>
struct Block {
    const Layer<T>& c;
    const Weights<T>& w;
    uint32_t keys[FW_BYTES / 4];

    Block(const Layer<T>& c, const Weights<T>& w, Size first) : c(c), w(w) { c.keep.template keys_of<T>(keys, first); }

    __attribute__((noinline)) void project(Vec<T>* out, Size out_row, Size row, Size numbers, const Vec<T>* X) const {
        const Split across(c.fields, TILE);
        for (Size q = 0; q < across.parts; ++q) {
            const Size f = across.begin(q);
            auto tiles = [&](auto C) {
                for (Size r = 0; r < numbers; r += ROWS)
                    weighted_tile<T, decltype(C)::value>(out + f * out_row + r, out_row, w.tiles + (row + r) * c.dim,
                                                         w.bias + row + r, X + f * c.dim, c.dim, c.relu_on_projections);
            };
            with_number<TILE>(across.begin(q + 1) - f, tiles);
        }
    }

    // q, k and v of a head, each [F][head_rows].
    void project_head(Vec<T>* P, Size h, const Vec<T>* X) const {
        const Size Kp = c.head_rows();
        for (Size p = 0; p < 3; ++p) project(P + p * c.fields * Kp, Kp, h * c.head_numbers() + p * Kp, Kp, X);
    }
    void project_residual(Vec<T>* sum, const Vec<T>* X) const {
        project(sum, c.sum_row(), c.heads * c.head_numbers(), c.sum_row(), X);
    }

    // The weights [n][F] of fields f, f + 1, .. of a head.
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
    // sum [n][A's part of a head] of fields f, f + 1, ..: their weights times v, added to what is there where `add`.
    void take(Vec<T>* sum, Vec<T>* a, Vec<T>* P, Size h, Size f, Size n, bool add) const {
        const Size Kp = c.head_rows(), S = c.sum_row();
        Vec<T>* v = P + 2 * c.fields * Kp;
        crossed<T>({sum + f * S + h * c.head(), S, 1}, {a, c.fields, 1}, {v, 1, Kp}, n, c.head(),
                   c.fields, add);
    }
    // The sum before norm and ReLU. `all_heads`: P and a of every head are kept, one after the other; else both are
    // used again, and a holds ROWS fields' weights only.
    void attended_sum(Vec<T>* sum, Vec<T>* P, Vec<T>* a, Vec<T>* dropped, const Vec<T>* X, bool all_heads) const {
        const Size F = c.fields, S = c.sum_row();
        if (c.residual == PROJECTED) project_residual(sum, X);
        if (c.residual == IDENTITY)
            for (Size f = 0; f < F; ++f)
                for (Size d = 0; d < c.dim; ++d) sum[f * S + d] = X[f * c.dim + d];
        for (Size h = 0; h < c.heads; ++h) {
            project_head(P, h, X);
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

    // Mean and 1 / deviation of x [A].
    FW_MEMBER void moments(Vec<T>& mean, Vec<T>& inverse, const Vec<T>* x) const {
        const Vec<T> share = all<T>(T(1) / T(c.attention));
        const Vec<T> m = total<T>(c.attention, [&](Size n) FW_LAMBDA { return x[n]; }) * share;
        const Vec<T> variance = total<T>(c.attention, [&](Size n) FW_LAMBDA { return (x[n] - m) * (x[n] - m); }) * share;
        mean = m;
        inverse = all<T>(1) / root<T>(variance + all<T>(c.epsilon));
    }
    void finish(Vec<T>* sum) const {
        for (Size f = 0; f < c.fields; ++f, sum += c.sum_row()) {
            if (c.norm == AFTER_RELU) activate(sum);
            if (c.norm != NO_NORM) {
                Vec<T> mean, inverse;
                moments(mean, inverse, sum);
                for (Size n = 0; n < c.attention; ++n)
                    sum[n] = (sum[n] - mean) * inverse * all<T>(c.gain[n]) + all<T>(c.shift[n]);
            }
            if (c.norm != AFTER_RELU) activate(sum);
        }
    }
    FW_MEMBER void activate(Vec<T>* x) const {
        for (Size n = 0; n < c.attention && c.output_relu; ++n) x[n] = relu<T>(x[n]);
    }
    // [F][A] in lanes from and to rows as they lie in memory.
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

template <class T>
struct Forward {
    Vec<T> *X, *P, *a, *sum;
    Forward(const Layer<T>& c, Space& space)
        : X(space.take<Vec<T>>(c.fields * c.dim)), P(space.take<Vec<T>>(3 * c.fields * c.head_rows())),
          a(space.take<Vec<T>>(ROWS * c.fields)), sum(space.take<Vec<T>>(c.fields * c.sum_row())) {}
};

template <class T>
int forward(const Layer<T>& c, int threads, T* y) {
    const Size L = lanes<T>(), blocks = c.blocks(), slices = least(blocks, 8 * SLICES);
    const Size in = c.fields * c.dim, out = c.fields * c.attention;
    Space shared = {0}, counted = {0};
    Weights<T>(c, shared, false);
    Forward<T>(c, counted);
    Scratch common(shared.at);
    if (!common.memory) return 1;
    shared.at = (uintptr_t)common.begin();
    const Weights<T> w(c, shared, false);
    w.fill(c);
    bool failed = false;
    auto body = [&](int64_t k) {
        Scratch memory(counted.at);
        if (!memory.memory) {
            failed = true;
            return;
        }
        Space space = {(uintptr_t)memory.begin()};
        const Forward<T> s(c, space);
        for (Size number = blocks * k / slices; number < blocks * (k + 1) / slices; ++number) {
            const Size first = number * L, count = least(L, c.batch - first);
            const Block<T> block(c, w, first);
            to_lanes<T>(s.X, c.x + first * in, in, count);
            block.attended_sum(s.sum, s.P, s.a, nullptr, s.X, false);
            block.finish(s.sum);
            block.store(y + first * out, s.sum, count);
        }
    };
    parallel(slices, threads, body);
    return failed;
}

// What a slice sums over its rows.
template <class T>
struct Sums {
    T* W;                     // [rows][dim_row]
    Vec<T> *b, *gain, *shift; // [rows], [A], [A]
};

template <class T>
struct Backward {
    const Layer<T>& c;
    const Weights<T>& w;
    const T *y, *grad;  // [B, F, A]
    T* gx;              // [B, F, D]
    Vec<T> *X, *P, *a, *E, *Q, *G, *R;  // see the constructor
    T *rows, *grad_rows;                // x and its gradient as they lie in memory, padded to whole vectors

    // Where the sum is computed again, all heads' q, k, v and weights are kept for what follows.
    static bool again(const Layer<T>& c) { return c.norm != NO_NORM; }
    static bool residual_gated(const Layer<T>& c) { return c.residual == PROJECTED && c.relu_on_projections; }

    Backward(const Layer<T>& c, const Weights<T>& w, const T* y, const T* grad, T* gx, Space& space)
        : c(c), w(w), y(y), grad(grad), gx(gx) {
        typedef Vec<T> V;
        const Size F = c.fields, kept = again(c) ? c.heads : 1;
        X = space.take<V>(F * c.dim);
        P = space.take<V>(kept * 3 * F * c.head_rows());
        a = space.take<V>(kept * F * F);
        E = space.take<V>(F * F);                             // gradients of weights, then of scores
        Q = space.take<V>(F * c.head_rows());                 // q's gradient
        G = space.take<V>(F * c.sum_row());                   // the sum's gradient
        R = space.take<V>(again(c) || residual_gated(c) || c.output_relu ? F * c.sum_row() : 0);
        rows = space.take<T>(lanes<T>() * F * c.dim_row());
        grad_rows = space.take<T>(lanes<T>() * F * c.dim_row());
    }

    void block(Size number, const Sums<T>& sums) const {
        const Size L = lanes<T>(), first = number * L, count = least(L, c.batch - first);
        const Size F = c.fields, D = c.dim, Dp = c.dim_row(), S = c.sum_row();
        const Block<T> block(c, w, first);
        const T* x = c.x + first * F * D;
        to_lanes<T>(X, x, F * D, count);
        if (Dp != D) {
            for (Size n = 0; n < count * F; ++n)
                for (Size d = 0; d < Dp; ++d) rows[n * Dp + d] = d < D ? x[n * D + d] : T(0);
            x = rows;
        }
        sum_gradient(block, first, count, sums);

        T* gx_rows = Dp == D && count == L ? gx + first * F * D : grad_rows;
        if (c.residual == IDENTITY) {
            for (Size f = 0; f < F; ++f) from_lanes<T>(gx_rows + f * Dp, G + f * S, D, L, F * Dp);
            for (Size n = 0; n < L * F; ++n)
                for (Size d = D; d < Dp; ++d) gx_rows[n * Dp + d] = 0;
        } else {
            for (Size n = 0; n < L * F * Dp; ++n) gx_rows[n] = 0;
        }
        for (Size h = 0; h < c.heads; ++h) {
            Vec<T>* p = P + (again(c) ? h * 3 * F * c.head_rows() : 0);
            Vec<T>* weights = a + (again(c) ? h * F * F : 0);
            if (!again(c)) {
                block.project_head(p, h, X);
                block.attend(weights, p, 0, F);
            }
            head_gradient(block, h, p, weights);
            const Size Kp = c.head_rows(), row = h * c.head_numbers();
            const Vec<T>* parts[3] = {Q, p + F * Kp, p + 2 * F * Kp};
            spread(gx_rows, parts, 3, c.head(), Kp, w.panels + h * 3 * c.head() * Dp);
            for (Size n = 0; n < 3; ++n) gather(sums, row + n * Kp, parts[n], Kp, Kp, x, count);
        }
        if (c.residual == PROJECTED) {
            if (residual_gated(c)) {
                block.project_residual(R, X);
                for (Size n = 0; n < F * S; ++n) G[n] = R[n] <= all<T>(0) ? all<T>(0) : G[n];
            }
            const Vec<T>* parts[1] = {G};
            spread(gx_rows, parts, 1, c.attention, S, w.panels + c.heads * 3 * c.head() * Dp);
            gather(sums, c.heads * c.head_numbers(), G, S, S, x, count);
        }
        if (gx_rows == grad_rows)
            for (Size n = 0; n < count * F; ++n)
                for (Size d = 0; d < D; ++d) gx[(first * F + n) * D + d] = grad_rows[n * Dp + d];
    }

    // G: the gradient of the sum before norm and ReLU.
    void sum_gradient(const Block<T>& block, Size first, Size count, const Sums<T>& sums) const {
        const Size F = c.fields, A = c.attention, S = c.sum_row(), at = first * F * A;
        block.load(G, grad + at, count);
        if (!again(c)) {
            if (!c.output_relu) return;
            block.load(R, y + at, count);
            for (Size f = 0; f < F; ++f)
                for (Size n = f * S; n < f * S + A; ++n) G[n] = R[n] <= all<T>(0) ? all<T>(0) : G[n];
            return;
        }
        block.attended_sum(R, P, a, E, X, true);
        for (Size f = 0; f < F; ++f) norm_gradient(block, G + f * S, R + f * S, sums);
    }

    // g [A]: from the layer's gradient to the sum's; z [A]: the sum.
    FW_MEMBER void norm_gradient(const Block<T>& block, Vec<T>* g, Vec<T>* z, const Sums<T>& sums) const {
        const Size A = c.attention;
        const Vec<T> zero = all<T>(0), share = all<T>(T(1) / T(A));
        const bool relu_first = c.norm == AFTER_RELU && c.output_relu, relu_last = c.norm == BEFORE_RELU && c.output_relu;
        if (relu_first) block.activate(z);
        Vec<T> mean, inverse;
        block.moments(mean, inverse, z);
        for (Size n = 0; n < A; ++n) {
            const Vec<T> standard = (z[n] - mean) * inverse, gain = all<T>(c.gain[n]);
            const Vec<T> into = relu_last ? (standard * gain + all<T>(c.shift[n]) <= zero ? zero : g[n]) : g[n];
            sums.gain[n] += into * standard;
            sums.shift[n] += into;
            g[n] = into * gain;
        }
        const Vec<T> even = total<T>(A, [&](Size n) FW_LAMBDA { return g[n]; }) * share;
        const Vec<T> along = total<T>(A, [&](Size n) FW_LAMBDA { return g[n] * (z[n] - mean); }) * inverse * share;
        for (Size n = 0; n < A; ++n) {
            const Vec<T> back = inverse * (g[n] - even - (z[n] - mean) * inverse * along);
            g[n] = relu_first ? (z[n] <= zero ? zero : back) : back;
        }
    }

    // From G to the gradients of a head's q (in Q), k and v (in their places).
    void head_gradient(const Block<T>& block, Size h, Vec<T>* p, Vec<T>* weights) const {
        const Size F = c.fields, K = c.head(), Kp = c.head_rows(), S = c.sum_row();
        Vec<T>*q = p, *k = p + F * Kp, *v = k + F * Kp, *g = G + h * K;
        crossed<T>({E, F, 1}, {g, S, 1}, {v, Kp, 1}, F, F, K);
        for (Size f = 0; f < F; ++f) {
            Vec<T>*e = E + f * F, *share = weights + f * F;
            if (c.keep)
                for (Size j = 0; j < F; ++j) e[j] *= block.kept(h, f, j);
            const Vec<T> mean = total<T>(F, [&](Size j) FW_LAMBDA { return share[j] * e[j]; });
            for (Size j = 0; j < F; ++j) e[j] = share[j] * (e[j] - mean);
        }
        if (c.keep) block.drop(weights, h, 0, F);
        const bool gated = c.relu_on_projections;
        crossed<T>({v, Kp, 1}, {weights, 1, F}, {g, 1, S}, F, K, F, false, gated ? v : nullptr);
        crossed<T>({Q, Kp, 1}, {E, F, 1}, {k, 1, Kp}, F, K, F, false, gated ? q : nullptr);
        crossed<T>({k, Kp, 1}, {E, 1, F}, {q, 1, Kp}, F, K, F, false, gated ? k : nullptr);
    }

    // x's gradient: to [l][f] += sum over parts and their numbers of g[f] * panels.
    __attribute__((noinline)) void spread(T* to, const Vec<T>* const* parts, Size count, Size depth, Size part_row, const T* panels) const {
        const Size L = lanes<T>(), Dp = c.dim_row(), F = c.fields, group = least(L, GROUP);
        const Split across(Dp / L, TILE);
        for (Size q = 0; q < across.parts; ++q) {
            const Size d = across.begin(q), width = across.begin(q + 1) - d;
            auto tiles = [&](auto C) {
                for (Size f = 0; f < F; ++f)
                    for (Size l = 0; l < L; l += group) {
                        const T* from[3];
                        for (Size s = 0; s < count; ++s) from[s] = (const T*)(parts[s] + f * part_row) + l;
                        spread_tile<T, decltype(C)::value>(to + (l * F + f) * Dp + d * L, F * Dp, from, count, panels,
                                                           depth);
                    }
            };
            with_number<TILE>(width, tiles);
            panels += count * depth * width * L;
        }
    }

    // Sums over rows: of the weight from `row` on, and of its bias.
    __attribute__((noinline)) void gather(const Sums<T>& sums, Size row, const Vec<T>* g, Size g_row, Size numbers, const T* x, Size count) const {
        const Size L = lanes<T>(), Dp = c.dim_row(), F = c.fields;
        const Split across(Dp / L, TILE);
        for (Size q = 0; q < across.parts; ++q) {
            const Size d = across.begin(q);
            auto tiles = [&](auto C) {
                for (Size n = 0; n < numbers; n += ROWS)
                    gathered_tile<T, decltype(C)::value>(sums.W + (row + n) * Dp + d * L, Dp, (const T*)(g + n), g_row * L,
                                                         x + d * L, F * Dp, Dp, F, count);
            };
            with_number<TILE>(across.begin(q + 1) - d, tiles);
        }
        for (Size f = 0; f < F && c.b; ++f)
            for (Size n = 0; n < numbers; ++n) sums.b[row + n] += g[f * g_row + n];
    }
};

template <class T>
int backward(const Layer<T>& c, int threads, const T* y, const T* grad, T* gx, T* gW, T* gb, T* ggain, T* gshift) {
    const Size blocks = c.blocks(), slices = least(blocks, SLICES), A = c.attention, D = c.dim, Dp = c.dim_row();
    const Size R = c.rows(), vectors = R + 2 * A, numbers = up(R * Dp + vectors, 64);
    Space shared = {0};
    Weights<T>(c, shared, true);
    shared.take<T>(slices * numbers);
    Scratch common(shared.at);
    if (!common.memory) return 1;
    shared.at = (uintptr_t)common.begin();
    const Weights<T> w(c, shared, true);
    T* slice_sums = shared.take<T>(slices * numbers);
    w.fill(c);
    Space counted = {0};
    Backward<T>(c, w, y, grad, gx, counted);
    counted.take<Vec<T>>(vectors);
    bool failed = false;
    auto body = [&](int64_t k) {
        Scratch memory(counted.at);
        if (!memory.memory) {
            failed = true;
            return;
        }
        __builtin_memset(memory.begin(), 0, counted.at);
        Space space = {(uintptr_t)memory.begin()};
        const Backward<T> pass(c, w, y, grad, gx, space);
        Vec<T>* kept = space.take<Vec<T>>(vectors);
        T* out = slice_sums + k * numbers;
        __builtin_memset(out, 0, sizeof(T) * numbers);
        const Sums<T> sums = {out, kept, kept + R, kept + R + A};
        for (Size block = blocks * k / slices; block < blocks * (k + 1) / slices; ++block) pass.block(block, sums);
        for (Size n = 0; n < vectors; ++n) out[R * Dp + n] = sum_lanes<T>(kept[n]);
    };
    parallel(slices, threads, body);
    if (failed) return 1;
    for (Size k = 1; k < slices; ++k)
        for (Size n = 0; n < numbers; ++n) slice_sums[n] += slice_sums[k * numbers + n];
    auto summed = [&](Size n) { return slices ? slice_sums[n] : T(0); };
    auto put = [&](Size row, Size first, Size count, T factor) {
        for (Size n = 0; n < count; ++n) {
            for (Size d = 0; d < D; ++d) gW[(first + n) * D + d] = factor * summed((row + n) * Dp + d);
            if (gb) gb[first + n] = factor * summed(R * Dp + row + n);
        }
    };
    for (Size h = 0; h < c.heads; ++h)
        for (Size p = 0; p < 3; ++p)
            put(h * c.head_numbers() + p * c.head_rows(), c.part(h, p), c.head(), p ? T(1) : c.scale);
    if (c.residual == PROJECTED) put(c.heads * c.head_numbers(), 3 * A, A, T(1));
    for (Size n = 0; n < A && c.norm != NO_NORM; ++n) {
        ggain[n] = summed(R * Dp + R + n);
        gshift[n] = summed(R * Dp + R + A + n);
    }
    return 0;
}

template <class T>
Layer<T> described(const Size* sizes, const double* numbers, uint64_t seed, const T* x, const T* W, const T* b,
                   const T* gain, const T* shift) {
    return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], Residual(sizes[5]), Norm(sizes[6]), sizes[7] != 0,
            sizes[8] != 0, T(numbers[0]), T(numbers[1]), {seed, uint32_t(sizes[9]), numbers[2]}, x, W, b, gain, shift};
}

}  // namespace

// sizes: B, F, D, A, H; residual (nothing, projected, identity), norm (none, before, after the ReLU), ReLU on
// projections, ReLU at the end, threshold of what is dropped. numbers: scale of scores, LayerNorm's epsilon, factor of
// what is kept. b, gain and shift may be null, and so may their gradients.
#define FW_INTERACTING(T)                                                                                              \
    FW_EXPORT int FW_NAME(fw_interacting_forward_##T)(int threads, const Size* sizes, const double* numbers,           \
                                                      uint64_t seed, const T* x, const T* W, const T* b,              \
                                                      const T* gain, const T* shift, T* y) {                           \
        return forward<T>(described<T>(sizes, numbers, seed, x, W, b, gain, shift), threads, y);                       \
    }                                                                                                                  \
    FW_EXPORT int FW_NAME(fw_interacting_backward_##T)(                                                                \
        int threads, const Size* sizes, const double* numbers, uint64_t seed, const T* x, const T* W, const T* b,      \
        const T* gain, const T* shift, const T* y, const T* grad, T* gx, T* gW, T* gb, T* ggain, T* gshift) {          \
        return backward<T>(described<T>(sizes, numbers, seed, x, W, b, gain, shift), threads, y, grad, gx, gW, gb,     \
                           ggain, gshift);                                                                             \
    }

FW_INTERACTING(float)
FW_INTERACTING(double)
