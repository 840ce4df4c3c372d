// AFM's attention over pairs of fields (Xiao et al., IJCAI 2017, Equations 3 to 5), forward and backward.
//
// A block has as many rows as a vector has lanes, and its fields are in lanes [F][D]. TILE pairs at a time are the
// columns of small matrix products, and the softmax over the pairs is computed online, with a running maximum and sum.
// The products and hidden vectors of all pairs are never stored: the backward pass computes them again.
#include "parallel.h"
#include "tiles.h"

namespace {

constexpr int GROUPS = 4;              // groups of TILE pairs that the backward pass holds at once
constexpr double LOWEST = -3.0e38;     // finite, so that a first maximum of -inf does not give NaN by itself
constexpr Size SLICES = 32;            // slices of a batch: sums over rows are per slice, then added in slice order

template <class T>
struct Pairs {
    Size batch, fields, dim, attention, pairs;
    const T* x;                  // [B, F, D]
    const int64_t *left, *right; // [P]
    const T *W, *b, *h;          // [A, D], [A], [A]
    Keep pair_keep, weight_keep; // dropout of products (element p * D + d of a row) and of weights (element p)
    // Forward only: the first `shared` fields are the same in every row and are in `context`, not in x. The pairs
    // among them are already pooled: the softmax starts from `start` [2 + D], its maximum, its sum and its mean.
    Size shared = 0;
    const T *context = nullptr, *start = nullptr;

    Size own() const { return (fields - shared) * dim; }  // length of a row of x

    Size padded() const { return up(attention, ROWS); }
    Size blocks() const { return (batch + lanes<T>() - 1) / lanes<T>(); }
};

// Packed weights that all blocks of a slice share.
template <class T>
struct Weights {
    T *W_tiles, *b, *h;  // [A / 4][D][4], [A], [A], padded with zeros

    static size_t size(const Pairs<T>& c) { return sizeof(T) * c.padded() * (c.dim + 2); }
    Weights(const Pairs<T>& c, void* memory) {
        W_tiles = (T*)memory;
        b = W_tiles + c.padded() * c.dim;
        h = b + c.padded();
        pack(W_tiles, c.W, c.attention, c.dim, c.dim, Size(1));
        for (Size a = 0; a < c.padded(); ++a) {
            b[a] = a < c.attention ? c.b[a] : T(0);
            h[a] = a < c.attention ? c.h[a] : T(0);
        }
    }
};

// The products of a group of pairs, [D][TILE]; slots after the last pair hold zeros. Dropout factors go to `kept`.
template <class T>
FW_INLINE void products(Vec<T>* Q, Vec<T>* kept, const Pairs<T>& c, const Vec<T>* X, const uint32_t* keys, Size first) {
    for (int t = 0; t < TILE; ++t) {
        const Size p = first + t;
        if (p >= c.pairs) {
            for (Size d = 0; d < c.dim; ++d) Q[d * TILE + t] = all<T>(0);
            continue;
        }
        const Vec<T>*u = X + c.left[p] * c.dim, *v = X + c.right[p] * c.dim;
        if (!c.pair_keep) {
            for (Size d = 0; d < c.dim; ++d) Q[d * TILE + t] = u[d] * v[d];
            continue;
        }
        for (Size d = 0; d < c.dim; ++d) {
            const Vec<T> k = c.pair_keep.factors(keys, p * c.dim + d, T(0));
            Q[d * TILE + t] = u[d] * v[d] * k;
            if (kept) kept[d * TILE + t] = k;
        }
    }
}

// The scores of a group, and on request its hidden vectors [A][TILE] after the ReLU.
template <class T>
FW_INLINE void scores(Vec<T> (&e)[TILE], Vec<T>* hidden, const Pairs<T>& c, const Weights<T>& w, const Vec<T>* Q) {
    FW_UNROLL for (int t = 0; t < TILE; ++t) e[t] = all<T>(0);
    for (Size a = 0; a < c.padded(); a += ROWS) {
        Vec<T> sums[ROWS][TILE];
        FW_UNROLL for (int k = 0; k < ROWS; ++k) {
            FW_UNROLL for (int t = 0; t < TILE; ++t) sums[k][t] = all<T>(w.b[a + k]);
        }
        tile_product<T, ROWS>(sums, w.W_tiles + a * c.dim, Q, c.dim);
        FW_UNROLL for (int k = 0; k < ROWS; ++k) {
            FW_UNROLL for (int t = 0; t < TILE; ++t) {
                const Vec<T> active = relu<T>(sums[k][t]);
                if (hidden) hidden[(a + k) * TILE + t] = active;
                e[t] += all<T>(w.h[a + k]) * active;
            }
        }
    }
}

template <class T>
void forward_block(const Pairs<T>& c, const Weights<T>& w, Size block, Vec<T>* X, T* pooled, T* stats) {
    const Size L = lanes<T>(), first = block * L, count = least(L, c.batch - first);
    Vec<T>*Q = X + c.fields * c.dim, *U = Q + c.dim * TILE;
    uint32_t pair_keys[FW_BYTES / 4], weight_keys[FW_BYTES / 4];
    c.pair_keep.template keys_of<T>(pair_keys, first);
    c.weight_keep.template keys_of<T>(weight_keys, first);
    to_lanes<T>(X + c.shared * c.dim, c.x + first * c.own(), c.own(), count);
    Vec<T> m = all<T>(c.start ? c.start[0] : T(LOWEST)), s = all<T>(c.start ? c.start[1] : T(0));
    for (Size d = 0; d < c.dim; ++d) U[d] = all<T>(c.start ? c.start[1] * c.start[2 + d] : T(0));
    for (Size p = 0; p < c.pairs; p += TILE) {
        products<T>(Q, nullptr, c, X, pair_keys, p);
        Vec<T> e[TILE];
        scores<T>(e, nullptr, c, w, Q);
        Vec<T> top = e[0];
        for (int t = 1; t < TILE; ++t)
            if (p + t < c.pairs) top = greater_of(top, e[t]);
        if (any_lane<T>((UVec<T>)(top > m))) {
            const Vec<T> next = greater_of(top, m), shrink = exponential(m - next);
            s *= shrink;
            for (Size d = 0; d < c.dim; ++d) U[d] *= shrink;
            m = next;
        }
        FW_UNROLL for (int t = 0; t < TILE; ++t) {
            if (p + t < c.pairs) {
                e[t] = exponential(e[t] - m);
                s += e[t];
                if (c.weight_keep) e[t] *= c.weight_keep.factors(weight_keys, p + t, T(0));
            } else {
                e[t] = all<T>(0);
            }
        }
        for (Size d = 0; d < c.dim; ++d) {
            Vec<T> u = U[d];
            FW_UNROLL for (int t = 0; t < TILE; ++t) u += e[t] * Q[d * TILE + t];
            U[d] = u;
        }
    }
    const Vec<T> share = all<T>(1) / s;
    for (Size d = 0; d < c.dim; ++d) U[d] *= share;
    from_lanes<T>(pooled + first * c.dim, U, c.dim, count);
    const Vec<T> kept[2] = {m, share};
    if (stats) from_lanes<T>(stats + first * 2, kept, 2, count);
}

template <class T>
int forward(const Pairs<T>& c, int threads, T* pooled, T* stats) {
    threads = worth(threads, c.batch * c.pairs * c.attention * c.dim / 16);
    const Size blocks = c.blocks(), slices = least(blocks, 2 * SLICES);
    bool failed = false;
    auto body = [&](int64_t k) {
        const size_t shared = up(Weights<T>::size(c), 64);
        Scratch memory(shared + sizeof(Vec<T>) * (c.fields * c.dim + c.dim * (TILE + 1)));
        if (!memory.memory) {
            report(failed);
            return;
        }
        const Weights<T> w(c, memory.begin());
        Vec<T>* X = (Vec<T>*)((char*)memory.begin() + shared);
        for (Size n = 0; n < c.shared * c.dim; ++n) X[n] = all<T>(c.context[n]);
        for (Size block = blocks * k / slices; block < blocks * (k + 1) / slices; ++block)
            forward_block<T>(c, w, block, X, pooled, stats);
    };
    parallel(slices, threads, body);
    return failed;
}

// A slice's sums over rows, a vector for each number; lanes are added at the end of the slice. h is not multiplied in:
// with u = de where the hidden unit is active, dW = h * sum(u q), db = h * sum(u), dh = W . sum(u q) + b * sum(u).
template <class T>
struct Sums {
    Vec<T> *W, *b;  // [A][D], [A], A padded
    static Size vectors(const Pairs<T>& c) { return c.padded() * (c.dim + 1); }
};

template <class T>
struct Backward {
    const Pairs<T>& c;
    const Weights<T>& w;
    const T *stats, *pooled, *grad;  // [B, 2], [B, D], [B, D]
    T *gx;                           // [B, F, D]
    const T* Wt_tiles;               // h * W, transposed: [D / 4][A][4]
    Sums<T> sums;
    Vec<T>* scratch;

    static Size dims(const Pairs<T>& c) { return up(c.dim, ROWS); }
    static Size vectors(const Pairs<T>& c) {
        const Size group = TILE * (2 * dims(c) + c.padded());
        return 2 * c.fields * c.dim + dims(c) * (1 + TILE) + GROUPS * group;
    }

    void block(Size number) const {
        const Size L = lanes<T>(), first = number * L, count = least(L, c.batch - first);
        const Size D = c.dim, Dp = dims(c), A = c.padded(), width = c.fields * D;
        Vec<T>*X = scratch, *GX = X + width, *g = GX + width, *gq = g + Dp;
        Vec<T>*Q = gq + Dp * TILE, *kept = Q + GROUPS * TILE * Dp, *H = kept + GROUPS * TILE * Dp;
        uint32_t pair_keys[FW_BYTES / 4], weight_keys[FW_BYTES / 4];
        c.pair_keep.template keys_of<T>(pair_keys, first);
        c.weight_keep.template keys_of<T>(weight_keys, first);
        to_lanes<T>(X, c.x + first * width, width, count);
        to_lanes<T>(g, grad + first * D, D, count);
        for (Size k = 0; k < width; ++k) GX[k] = all<T>(0);
        Vec<T> stat[2];
        to_lanes<T>(stat, stats + first * 2, 2, count);
        // Lanes after the end of the batch have no weight: their share is 0, and with this maximum the exponential of
        // a score, which may come from the bias alone, is never infinite.
        for (Size l = count; l < L; ++l) ((T*)stat)[l] = T(-LOWEST);
        const Vec<T> m = stat[0], share = stat[1];
        Vec<T> mean = all<T>(0);  // sum over pairs of weight * gradient of the weight = <gradient, pooled>
        to_lanes<T>(gq, pooled + first * D, D, count);
        for (Size d = 0; d < D; ++d) mean += g[d] * gq[d];

        for (Size p = 0; p < c.pairs; p += GROUPS * TILE) {
            const Size groups = least(GROUPS, (c.pairs - p + TILE - 1) / TILE);
            for (Size group = 0; group < groups; ++group)
                one_group(p + group * TILE, X, GX, g, gq, Q + group * TILE * Dp, kept + group * TILE * Dp,
                          H + group * TILE * A, pair_keys, weight_keys, m, share, mean);
            weight_sums(groups, Q, H);
        }
        from_lanes<T>(gx + first * width, GX, width, count);
    }

    FW_MEMBER void one_group(Size p, const Vec<T>* X, Vec<T>* GX, const Vec<T>* g, Vec<T>* gq, Vec<T>* Q,
                                    Vec<T>* kept, Vec<T>* H, const uint32_t* pair_keys, const uint32_t* weight_keys,
                                    Vec<T> m, Vec<T> share, Vec<T> mean) const {
        const Size D = c.dim, A = c.padded();
        products<T>(Q, kept, c, X, pair_keys, p);
        Vec<T> e[TILE], along[TILE], weight[TILE];
        scores<T>(e, H, c, w, Q);
        FW_UNROLL for (int t = 0; t < TILE; ++t) along[t] = all<T>(0);
        for (Size d = 0; d < D; ++d) {
            FW_UNROLL for (int t = 0; t < TILE; ++t) along[t] += g[d] * Q[d * TILE + t];
        }
        FW_UNROLL for (int t = 0; t < TILE; ++t) {
            if (p + t >= c.pairs) {
                e[t] = weight[t] = all<T>(0);
                continue;
            }
            const Vec<T> a = exponential(e[t] - m) * share;
            weight[t] = a;
            if (c.weight_keep) {
                const Vec<T> k = c.weight_keep.factors(weight_keys, p + t, T(0));
                weight[t] *= k;
                along[t] *= k;
            }
            e[t] = a * (along[t] - mean);  // the score's gradient
        }
        for (Size a = 0; a < A; ++a) {
            Vec<T> sum = sums.b[a];
            FW_UNROLL for (int t = 0; t < TILE; ++t) {
                const Vec<T> u = H[a * TILE + t] <= all<T>(0) ? all<T>(0) : e[t];
                sum += u;
                H[a * TILE + t] = u;
            }
            sums.b[a] = sum;
        }
        Size d = 0;
        for (; d + ROWS <= D; d += ROWS) into_products<ROWS>(gq, g, H, weight, d);
        if (d + 3 == D) into_products<3>(gq, g, H, weight, d);
        if (d + 2 == D) into_products<2>(gq, g, H, weight, d);
        if (d + 1 == D) into_products<1>(gq, g, H, weight, d);
        for (Size t = 0; t < TILE && p + t < c.pairs; ++t) {
            const Size i = c.left[p + t] * D, j = c.right[p + t] * D;
            for (Size d = 0; d < D; ++d) {
                Vec<T> q = gq[d * TILE + t];
                if (c.pair_keep) q *= kept[d * TILE + t];
                GX[i + d] += q * X[j + d];
                GX[j + d] += q * X[i + d];
            }
        }
    }

    // The gradient of K entries of the products: weight * g + (h * W)^T H.
    template <int K>
    FW_MEMBER void into_products(Vec<T>* gq, const Vec<T>* g, const Vec<T>* H, const Vec<T> (&weight)[TILE],
                                 Size d) const {
        Vec<T> out[K][TILE];
        FW_UNROLL for (int k = 0; k < K; ++k) {
            FW_UNROLL for (int t = 0; t < TILE; ++t) out[k][t] = weight[t] * g[d + k];
        }
        tile_product<T, K>(out, Wt_tiles + d * c.padded(), H, c.padded());
        FW_UNROLL for (int k = 0; k < K; ++k) {
            FW_UNROLL for (int t = 0; t < TILE; ++t) gq[(d + k) * TILE + t] = out[k][t];
        }
    }

    // sums.W[a][d] += sum over the groups' pairs of H[a] * Q[d].
    FW_MEMBER void weight_sums(Size groups, const Vec<T>* Q, const Vec<T>* H) const {
        const Size D = c.dim, Dp = dims(c), A = c.padded();
        for (Size a = 0; a < A; a += ROWS) {
            Size d = 0;
            for (; D - d >= 3 && D - d != 4; d += 3) outer<3>(groups, a, d, Q, H, Dp, A);
            for (; D - d >= 2; d += 2) outer<2>(groups, a, d, Q, H, Dp, A);
            if (d < D) outer<1>(groups, a, d, Q, H, Dp, A);
        }
    }
    template <int N>
    FW_MEMBER void outer(Size groups, Size a, Size d, const Vec<T>* Q, const Vec<T>* H, Size Dp, Size A) const {
        Vec<T> out[ROWS][N];
        FW_UNROLL for (int k = 0; k < ROWS; ++k) {
            FW_UNROLL for (int n = 0; n < N; ++n) out[k][n] = sums.W[(a + k) * c.dim + d + n];
        }
        for (Size group = 0; group < groups; ++group) {
            const Vec<T>*h = H + (group * A + a) * TILE, *q = Q + (group * Dp + d) * TILE;
            for (int t = 0; t < TILE; ++t) {
                FW_UNROLL for (int k = 0; k < ROWS; ++k) {
                    const Vec<T> row = h[k * TILE + t];
                    FW_UNROLL for (int n = 0; n < N; ++n) out[k][n] += row * q[n * TILE + t];
                }
            }
        }
        FW_UNROLL for (int k = 0; k < ROWS; ++k) {
            FW_UNROLL for (int n = 0; n < N; ++n) sums.W[(a + k) * c.dim + d + n] = out[k][n];
        }
    }
};

template <class T>
int backward(const Pairs<T>& c, int threads, const T* stats, const T* pooled, const T* grad, T* gx, T* gW, T* gb,
             T* gh) {
    const Size blocks = c.blocks(), slices = least(blocks, SLICES), A = c.attention, D = c.dim, Dp = up(D, ROWS);
    const Size numbers = A * (D + 1);
    Scratch totals(sizeof(T) * (slices * numbers + Dp * c.padded()));
    if (!totals.memory) return 1;
    T *Wt_tiles = (T*)totals.begin(), *slice_sums = Wt_tiles + Dp * c.padded();
    {
        // W transposed, in tiles over d whose depth is the padded A.
        for (Size d = 0; d < Dp; d += ROWS)
            for (Size a = 0; a < c.padded(); ++a)
                for (Size k = 0; k < ROWS; ++k)
                    Wt_tiles[d * c.padded() + a * ROWS + k] = a < A && d + k < D ? c.h[a] * c.W[a * D + d + k] : T(0);
    }
    bool failed = false;
    auto body = [&](int64_t k) {
        const size_t shared = up(Weights<T>::size(c), 64);
        const Size kept = Sums<T>::vectors(c), scratch = Backward<T>::vectors(c);
        Scratch memory(shared + sizeof(Vec<T>) * (kept + scratch));
        if (!memory.memory) {
            report(failed);
            return;
        }
        const Weights<T> w(c, memory.begin());
        Vec<T>* vectors = (Vec<T>*)((char*)memory.begin() + shared);
        for (Size v = 0; v < kept + scratch; ++v) vectors[v] = all<T>(0);
        const Sums<T> sums = {vectors, vectors + c.padded() * D};
        const Backward<T> pass = {c, w, stats, pooled, grad, gx, Wt_tiles, sums, vectors + kept};
        for (Size block = blocks * k / slices; block < blocks * (k + 1) / slices; ++block) pass.block(block);
        T* out = slice_sums + k * numbers;
        for (Size n = 0; n < A * D; ++n) out[n] = sum_lanes<T>(sums.W[n]);
        for (Size a = 0; a < A; ++a) out[A * D + a] = sum_lanes<T>(sums.b[a]);
    };
    parallel(slices, threads, body);
    if (failed) return 1;
    for (Size a = 0; a < A; ++a) {
        gb[a] = 0;
        for (Size k = 0; k < slices; ++k) gb[a] += slice_sums[k * numbers + A * D + a];
        gh[a] = c.b[a] * gb[a];
        gb[a] *= c.h[a];
        for (Size d = 0; d < D; ++d) {
            T sum = 0;
            for (Size k = 0; k < slices; ++k) sum += slice_sums[k * numbers + a * D + d];
            gh[a] += c.W[a * D + d] * sum;
            gW[a * D + d] = c.h[a] * sum;
        }
    }
    return 0;
}

template <class T>
Pairs<T> described(const Size* sizes, const T* x, const int64_t* left, const int64_t* right, const T* W, const T* b,
                   const T* h, const uint64_t* seeds, const uint32_t* thresholds, const double* factors) {
    return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], x, left, right, W, b, h,
            {seeds[0], thresholds[0], factors[0]}, {seeds[1], thresholds[1], factors[1]}};
}

}  // namespace

// sizes: B, F, D, A, P; seeds, thresholds, factors: of products, of weights. stats [B, 2]: maximum, 1 / sum.
// Candidates: sizes are B, F, D, A, P and the number of context fields among the F fields.
#define FW_PAIR_ATTENTION(T)                                                                                          \
    FW_EXPORT int FW_NAME(fw_pair_attention_forward_##T)(                                                             \
        int threads, const Size* sizes, const T* x, const int64_t* left, const int64_t* right, const T* W, const T* b, \
        const T* h, const uint64_t* seeds, const uint32_t* thresholds, const double* factors, T* pooled, T* stats) {  \
        return forward<T>(described<T>(sizes, x, left, right, W, b, h, seeds, thresholds, factors), threads, pooled,  \
                          stats);                                                                                     \
    }                                                                                                                 \
    FW_EXPORT int FW_NAME(fw_pair_attention_candidates_##T)(                                                          \
        int threads, const Size* sizes, const T* context, const T* x, const int64_t* left, const int64_t* right,      \
        const T* W, const T* b, const T* h, const T* start, T* pooled) {                                              \
        const Pairs<T> c = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], x, left, right, W, b, h, {0, 0, 1.0},   \
                            {0, 0, 1.0}, sizes[5], context, start};                                                   \
        return forward<T>(c, threads, pooled, (T*)nullptr);                                                           \
    }                                                                                                                 \
    FW_EXPORT int FW_NAME(fw_pair_attention_backward_##T)(                                                            \
        int threads, const Size* sizes, const T* x, const int64_t* left, const int64_t* right, const T* W, const T* b, \
        const T* h, const uint64_t* seeds, const uint32_t* thresholds, const double* factors, const T* pooled,        \
        const T* stats, const T* grad, T* gx, T* gW, T* gb, T* gh) {                                                  \
        return backward<T>(described<T>(sizes, x, left, right, W, b, h, seeds, thresholds, factors), threads, stats,  \
                           pooled, grad, gx, gW, gb, gh);                                                             \
    }

FW_PAIR_ATTENTION(float)
FW_PAIR_ATTENTION(double)
