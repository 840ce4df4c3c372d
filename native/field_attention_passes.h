// AutoInt's interacting layer, forward and backward, with either kind of multiplication (Exact, Half).
//
// A block has as many rows as a vector has lanes. One head at a time, its fields are projected and attended, and the
// result is added to the sum [F][A], all in cache. The projections and attention weights are never stored for the whole
// batch: the backward pass computes them again.
#pragma once
#include "field_attention.h"
#include "parallel.h"

namespace {

constexpr Size SLICES = 32;  // slices of a batch: sums over rows are computed per slice, then added in slice order

// x as words, if they are not its lanes themselves.
template <class M>
typename M::Words* take_words(Space& space, Size vectors) {
    return M::PAIR > 1 ? space.take<typename M::Words>(vectors) : nullptr;
}

template <class M>
struct Forward {
    typedef typename M::Number T;
    Vec<T> *X, *P, *a, *sum;
    typename M::Words* kept;
    Forward(const Layer<T>& c, Space& space)
        : X(space.take<Vec<T>>(c.fields * c.dim)), P(space.take<Vec<T>>(3 * c.fields * c.head_rows())),
          a(space.take<Vec<T>>(ROWS * c.fields)), sum(space.take<Vec<T>>(c.fields * c.sum_row())),
          kept(take_words<M>(space, c.fields * words_of<M>(c.dim))) {}
};

template <class M, class T>
int forward(const Layer<T>& c, int threads, T* y) {
    const Size L = lanes<T>(), blocks = c.blocks(), slices = least(blocks, 8 * SLICES);
    const Size in = c.fields * c.dim, out = c.fields * c.attention;
    Space shared = {0}, counted = {0};
    Weights<M>(c, shared, false);
    Forward<M>(c, counted);
    Scratch common(shared.at);
    if (!common.memory) return 1;
    shared.at = (uintptr_t)common.begin();
    const Weights<M> w(c, shared, false);
    w.fill(c);
    bool failed = false;
    auto body = [&](int64_t k) {
        Scratch memory(counted.at);
        if (!memory.memory) {
            report(failed);
            return;
        }
        Space space = {(uintptr_t)memory.begin()};
        const Forward<M> s(c, space);
        for (Size number = blocks * k / slices; number < blocks * (k + 1) / slices; ++number) {
            const Size first = number * L, count = least(L, c.batch - first);
            const Block<M> block(c, w, first);
            to_lanes<T>(s.X, c.x + first * in, in, count);
            const typename M::Words* factors = M::words(s.kept, s.X, c.fields, c.dim, c.dim);
            block.attended_sum(s.sum, s.P, s.a, nullptr, s.X, factors, false);
            block.finish(s.sum);
            block.store(y + first * out, s.sum, count);
        }
    };
    parallel(slices, threads, body);
    return failed;
}

// Gradients of the parameters, summed over a slice's rows.
template <class T>
struct Sums {
    T* W;                                 // [rows][dim_row]
    Vec<T> *b, *norm_weight, *norm_bias;  // [rows], [A], [A]
};

template <class M>
struct Backward {
    typedef typename M::Number T;
    typedef typename M::Word Word;
    typedef typename M::Words Words;
    const Layer<T>& c;
    const Weights<M>& w;
    const T *y, *grad;  // [B, F, A]
    T* gx;              // [B, F, D]
    Vec<T> *X, *P, *a, *E, *Q, *G, *R;  // see the constructor
    T *rows, *grad_rows;                // x and its gradient in row-major order, padded to whole vectors
    Words *x_words, *numbers;            // words of x's lanes, and of numbers' gradients
    Word *pairs, *grad_pairs;           // words of neighbouring rows of x, and of numbers' gradients

    // Whether the sum is computed again; then all heads' q, k, v and weights are kept for the following steps.
    static bool again(const Layer<T>& c) { return c.norm != NO_NORM; }
    static bool residual_gated(const Layer<T>& c) { return c.residual == PROJECTED && c.relu_on_projections; }

    Backward(const Layer<T>& c, const Weights<M>& w, const T* y, const T* grad, T* gx, Space& space)
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
        x_words = take_words<M>(space, F * words_of<M>(c.dim));
        numbers = take_words<M>(space, F * words_of<M>(most(3 * c.head_rows(), c.sum_row())));
        pairs = (Word*)take_words<M>(space, F * c.dim_row() / 2);
        grad_pairs = (Word*)take_words<M>(space, F * most(c.head_rows(), c.sum_row()) / 2);
    }

    void block(Size number, const Sums<T>& sums) const {
        const Size L = lanes<T>(), first = number * L, count = least(L, c.batch - first);
        const Size F = c.fields, D = c.dim, Dp = c.dim_row(), S = c.sum_row();
        const Block<M> block(c, w, first);
        const T* x = c.x + first * F * D;
        to_lanes<T>(X, x, F * D, count);
        const Words* factors = M::words(x_words, X, F, D, D);
        if (Dp != D) {
            for (Size n = 0; n < count * F; ++n)
                for (Size d = 0; d < Dp; ++d) rows[n * Dp + d] = d < D ? x[n * D + d] : T(0);
            x = rows;
        }
        const Word* x_pairs = M::row_pairs(pairs, x, F * Dp, count);
        sum_gradient(block, first, count, factors, sums);

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
                block.project_head(p, h, factors);
                block.attend(weights, p, 0, F);
            }
            head_gradient(block, h, p, weights);
            const Size Kp = c.head_rows(), row = h * c.head_numbers();
            const Vec<T>* parts[3] = {Q, p + F * Kp, p + 2 * F * Kp};
            spread(gx_rows, parts, 3, c.head(), Kp, w.panels + h * 3 * words_of<M>(c.head()) * Dp);
            for (Size n = 0; n < 3; ++n) gather(sums, row + n * Kp, parts[n], Kp, Kp, x_pairs, count);
        }
        if (c.residual == PROJECTED) {
            if (residual_gated(c)) {
                block.project_residual(R, factors);
                for (Size n = 0; n < F * S; ++n) G[n] = R[n] <= all<T>(0) ? all<T>(0) : G[n];
            }
            const Vec<T>* parts[1] = {G};
            spread(gx_rows, parts, 1, c.attention, S, w.panels + c.heads * 3 * words_of<M>(c.head()) * Dp);
            gather(sums, c.heads * c.head_numbers(), G, S, S, x_pairs, count);
        }
        if (gx_rows == grad_rows)
            for (Size n = 0; n < count * F; ++n)
                for (Size d = 0; d < D; ++d) gx[(first * F + n) * D + d] = grad_rows[n * Dp + d];
    }

    // G: the gradient of the sum before norm and ReLU.
    void sum_gradient(const Block<M>& block, Size first, Size count, const Words* factors, const Sums<T>& sums) const {
        const Size F = c.fields, A = c.attention, S = c.sum_row(), at = first * F * A;
        block.load(G, grad + at, count);
        if (!again(c)) {
            if (!c.output_relu) return;
            block.load(R, y + at, count);
            for (Size f = 0; f < F; ++f)
                for (Size n = f * S; n < f * S + A; ++n) G[n] = R[n] <= all<T>(0) ? all<T>(0) : G[n];
            return;
        }
        block.attended_sum(R, P, a, E, X, factors, true);
        for (Size f = 0; f < F; ++f) norm_gradient(block, G + f * S, R + f * S, sums);
    }

    // g [A]: on entry the gradient of the layer's output, on return that of the sum; z [A]: the sum.
    FW_MEMBER void norm_gradient(const Block<M>& block, Vec<T>* g, Vec<T>* z, const Sums<T>& sums) const {
        const Size A = c.attention;
        const Vec<T> zero = all<T>(0), share = all<T>(T(1) / T(A));
        const bool relu_first = c.norm == AFTER_RELU && c.output_relu;
        const bool relu_last = c.norm == BEFORE_RELU && c.output_relu;
        if (relu_first) block.activate(z);
        Vec<T> mean, inverse;
        block.moments(mean, inverse, z);
        for (Size n = 0; n < A; ++n) {
            const Vec<T> standard = (z[n] - mean) * inverse, weight = all<T>(c.norm_weight[n]);
            const Vec<T> into = relu_last ? (standard * weight + all<T>(c.norm_bias[n]) <= zero ? zero : g[n]) : g[n];
            sums.norm_weight[n] += into * standard;
            sums.norm_bias[n] += into;
            g[n] = into * weight;
        }
        const Vec<T> even = total<T>(A, [&](Size n) FW_LAMBDA { return g[n]; }) * share;
        const Vec<T> along = total<T>(A, [&](Size n) FW_LAMBDA { return g[n] * (z[n] - mean); }) * inverse * share;
        for (Size n = 0; n < A; ++n) {
            const Vec<T> back = inverse * (g[n] - even - (z[n] - mean) * inverse * along);
            g[n] = relu_first ? (z[n] <= zero ? zero : back) : back;
        }
    }

    // Computes from G the gradients of a head's q (written to Q), k and v (in place).
    void head_gradient(const Block<M>& block, Size h, Vec<T>* p, Vec<T>* weights) const {
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

    // Gradient of x: to[l][f] += sum over the parts and their numbers of g[f] * panels.
    FW_ALONE void spread(T* to, const Vec<T>* const* parts, Size count, Size depth, Size part_row,
                         const Word* panels) const {
        const Size L = lanes<T>(), Dp = c.dim_row(), F = c.fields, group = least(L, GROUP);
        const Size words = words_of<M>(depth), row = words_of<M>(part_row);
        const Words* factors[3];
        for (Size s = 0; s < count; ++s) factors[s] = M::words(numbers + s * F * row, parts[s], F, part_row, part_row);
        const Split across(Dp / L, TILE);
        for (Size q = 0; q < across.parts; ++q) {
            const Size d = across.begin(q), width = across.begin(q + 1) - d;
            auto tiles = [&](auto C) {
                for (Size f = 0; f < F; ++f)
                    for (Size l = 0; l < L; l += group) {
                        const Word* from[3];
                        for (Size s = 0; s < count; ++s) from[s] = (const Word*)(factors[s] + f * row) + l;
                        spread_tile<M, decltype(C)::value>(to + (l * F + f) * Dp + d * L, F * Dp, from, count, panels,
                                                           words);
                    }
            };
            with_number<TILE>(width, tiles);
            panels += count * words * width * L;
        }
    }

    // Adds to the sums over rows of the gradients of W (from row `row` on) and of its bias.
    FW_ALONE void gather(const Sums<T>& sums, Size row, const Vec<T>* g, Size g_row, Size numbers, const Word* x,
                         Size count) const {
        const Size L = lanes<T>(), Dp = c.dim_row(), F = c.fields, G = L / M::PAIR;
        const Word* factors = M::lane_pairs(grad_pairs, g, F * g_row);
        const Split across(Dp / L, TILE);
        for (Size q = 0; q < across.parts; ++q) {
            const Size d = across.begin(q);
            auto tiles = [&](auto C) {
                for (Size n = 0; n < numbers; n += ROWS)
                    gathered_tile<M, decltype(C)::value>(sums.W + (row + n) * Dp + d * L, Dp, factors + n * G,
                                                         g_row * G, x + d * L, F * Dp, Dp, F, words_of<M>(count));
            };
            with_number<TILE>(across.begin(q + 1) - d, tiles);
        }
        for (Size f = 0; f < F && c.b; ++f)
            for (Size n = 0; n < numbers; ++n) sums.b[row + n] += g[f * g_row + n];
    }
};

template <class M, class T>
int backward(const Layer<T>& c, int threads, const T* y, const T* grad, T* gx, T* gW, T* gb, T* gnorm_weight,
             T* gnorm_bias) {
    const Size blocks = c.blocks(), slices = least(blocks, SLICES), A = c.attention, D = c.dim, Dp = c.dim_row();
    const Size R = c.rows(), vectors = R + 2 * A, numbers = up(R * Dp + vectors, 64);
    Space shared = {0};
    Weights<M>(c, shared, true);
    shared.take<T>(slices * numbers);
    Scratch common(shared.at);
    if (!common.memory) return 1;
    shared.at = (uintptr_t)common.begin();
    const Weights<M> w(c, shared, true);
    T* slice_sums = shared.take<T>(slices * numbers);
    w.fill(c);
    Space counted = {0};
    Backward<M>(c, w, y, grad, gx, counted);
    counted.take<Vec<T>>(vectors);
    bool failed = false;
    auto body = [&](int64_t k) {
        Scratch memory(counted.at);
        if (!memory.memory) {
            report(failed);
            return;
        }
        __builtin_memset(memory.begin(), 0, counted.at);
        Space space = {(uintptr_t)memory.begin()};
        const Backward<M> pass(c, w, y, grad, gx, space);
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
        gnorm_weight[n] = summed(R * Dp + R + n);
        gnorm_bias[n] = summed(R * Dp + R + A + n);
    }
    return 0;
}

template <class T>
Layer<T> described(const Size* sizes, const double* numbers, uint64_t seed, const T* x, const T* W, const T* b,
                   const T* norm_weight, const T* norm_bias) {
    return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], Residual(sizes[5]), Norm(sizes[6]), sizes[7] != 0,
            sizes[8] != 0, T(numbers[0]), T(numbers[1]), {seed, uint32_t(sizes[9]), numbers[2]}, x, W, b, norm_weight,
            norm_bias};
}

}  // namespace
