// MaxSim, IntTower's late interaction (Li et al., CIKM 2022), of pairs of rows: the sum over user heads of the largest
// inner product with an item head, and its gradient.
#include "maxsim.h"
#include "parallel.h"

namespace {

constexpr Size WORD = 32;  // item heads per word of bits
constexpr Size SLICES = 256;

// The largest products of N vectors of user heads with an item head so far, and as bits the item heads that reach them
// (several in case of ties).
template <class T, int N>
struct Winners {
    Vec<T> value[N];
    IVec<T> spoilt[N];
    UVec<T> word[N];

    FW_MEMBER Winners() {
        FW_UNROLL for (int t = 0; t < N; ++t) value[t] = all<T>(T(-__builtin_inf())), spoilt[t] = IVec<T>{};
    }
    template <int R>
    FW_ALONE void meet(const T* items, const Vec<T>* columns, Size P, int bit) {
        Vec<T> sums[R][N];
        products<T, R, N>(sums, items, columns, P);
        FW_UNROLL for (int k = 0; k < R; ++k) {
            const UVec<T> one = UVec<T>{} + (typename VecOf<T>::Word(1) << (bit + k));
            FW_UNROLL for (int t = 0; t < N; ++t) {
                const Vec<T> s = sums[k][t];
                const IVec<T> more = s > value[t], same = s == value[t];
                spoilt[t] |= s != s;
                word[t] = more ? one : word[t] | ((UVec<T>)same & one);
                value[t] = more ? s : value[t];
            }
        }
    }
};

template <class T>
struct Rows {
    Size batch, heads, items, dim;  // B, H, K, P
    const T *user, *item;           // [B, H, P], [B, K, P]
    Size words() const { return (items + WORD - 1) / WORD; }
};

// One group of one row: its scores are added lane by lane; words are [W][N] vectors.
template <class T, int N>
void row_group(const Rows<T>& c, const T* item, const Vec<T>* columns, const Groups<T>& groups, Size first,
               Vec<T>& total, int32_t* wins) {
    Winners<T, N> best;
    UVec<T> words[N];  // bits of the current block of item heads
    Size W = c.words();
    auto store = [&](Size w) {
        for (int t = 0; t < N; ++t)
            for (Size l = 0; l < lanes<T>(); ++l) {
                const Size head = (first + t) * lanes<T>() + l;
                if (head < c.heads) wins[head * W + w] = int32_t(uint32_t(words[t][l]));
            }
    };
    for (Size w = 0; w < W; ++w) {
        Vec<T> before[N];
        FW_UNROLL for (int t = 0; t < N; ++t) before[t] = best.value[t], best.word[t] = UVec<T>{};
        const Size end = least(c.items, (w + 1) * WORD);
        Size k = w * WORD;
        for (; k + ROWS <= end; k += ROWS) best.template meet<ROWS>(item + k * c.dim, columns, c.dim, int(k % WORD));
        for (; k < end; ++k) best.template meet<1>(item + k * c.dim, columns, c.dim, int(k % WORD));
        FW_UNROLL for (int t = 0; t < N; ++t) words[t] = best.word[t];
        store(w);
        // If this block has a larger product, the bits of the earlier blocks are cleared.
        for (Size earlier = 0; earlier < w; ++earlier)
            for (int t = 0; t < N; ++t)
                for (Size l = 0; l < lanes<T>(); ++l) {
                    const Size head = (first + t) * lanes<T>() + l;
                    if (head < c.heads && best.value[t][l] > before[t][l]) wins[head * W + earlier] = 0;
                }
    }
    for (int t = 0; t < N; ++t) {
        const Vec<T> value = best.spoilt[t] ? all<T>(T(__builtin_nan(""))) : best.value[t];
        total += groups.real(first + t) ? value : Vec<T>{};
        if (!any_lane<T>((UVec<T>)best.spoilt[t])) continue;
        for (Size l = 0; l < lanes<T>(); ++l) {
            const Size head = (first + t) * lanes<T>() + l;
            if (head < c.heads && best.spoilt[t][l])
                for (Size w = 0; w < W; ++w) wins[head * W + w] = 0;
        }
    }
}

template <class T>
int forward(const Rows<T>& c, int threads, T* scores, int32_t* wins) {
    const Groups<T> groups(c.heads);
    const Size slices = least(c.batch, SLICES);
    bool failed = false;
    auto body = [&](int64_t slice) {
        Scratch memory(sizeof(Vec<T>) * groups.vectors * c.dim);
        if (!memory.memory) {
            report(failed);
            return;
        }
        Vec<T>* columns = (Vec<T>*)memory.begin();
        for (Size b = c.batch * slice / slices; b < c.batch * (slice + 1) / slices; ++b) {
            to_columns<T>(columns, c.user + b * c.heads * c.dim, groups, c.dim);
            Vec<T> total = Vec<T>{};
            for (Size group = 0; group < groups.count; ++group)
                with_width(groups.width(group), [&](auto n) {
                    const Size first = groups.first(group);
                    row_group<T, decltype(n)::value>(c, c.item + b * c.items * c.dim, columns + first * c.dim, groups,
                                                     first, total, wins + b * c.heads * c.words());
                });
            scores[b] = sum_lanes<T>(total);
        }
    };
    parallel(slices, threads, body);
    return failed;
}

template <class T>
FW_INLINE void scaled(T* __restrict to, const T* __restrict from, T by, Size n) {
    for (Size p = 0; p < n; ++p) to[p] = by * from[p];
}
template <class T>
FW_INLINE void add_scaled(T* __restrict to, const T* __restrict from, T by, Size n) {
    for (Size p = 0; p < n; ++p) to[p] += by * from[p];
}

// A user head's gradient is divided equally among the item heads that reach its maximum. If the maximum is NaN, there
// is none, and all item heads receive NaN, as in PyTorch.
template <class T>
void backward_row(const Rows<T>& c, const T* user, const T* item, const int32_t* wins, T grad, T* gu, T* gi) {
    for (Size n = 0; n < c.items * c.dim; ++n) gi[n] = T(0);
    for (Size h = 0; h < c.heads; ++h, wins += c.words(), user += c.dim, gu += c.dim) {
        int count = 0;
        for (Size w = 0; w < c.words(); ++w) count += __builtin_popcount(uint32_t(wins[w]));
        if (!count) {
            const T nan = T(__builtin_nan(""));
            for (Size p = 0; p < c.dim; ++p) gu[p] = nan;
            for (Size n = 0; n < c.items * c.dim; ++n) gi[n] = nan;
            continue;
        }
        const T share = grad / T(count);
        bool first = true;
        for (Size w = 0; w < c.words(); ++w) {
            for (uint32_t left = uint32_t(wins[w]); left; left &= left - 1, first = false) {
                const Size at = (w * WORD + __builtin_ctz(left)) * c.dim;
                if (first)
                    scaled<T>(gu, item + at, share, c.dim);
                else
                    add_scaled<T>(gu, item + at, share, c.dim);
                add_scaled<T>(gi + at, user, share, c.dim);
            }
        }
    }
}

template <class T>
int backward(const Rows<T>& c, int threads, const int32_t* wins, const T* grad, T* gu, T* gi) {
    const Size slices = least(c.batch, SLICES), U = c.heads * c.dim, I = c.items * c.dim;
    auto body = [&](int64_t slice) {
        for (Size b = c.batch * slice / slices; b < c.batch * (slice + 1) / slices; ++b)
            backward_row<T>(c, c.user + b * U, c.item + b * I, wins + b * c.heads * c.words(), grad[b], gu + b * U,
                            gi + b * I);
    };
    parallel(slices, threads, body);
    return 0;
}

}  // namespace

// sizes: B, H, K, P. wins [B, H, ceil(K / 32)]: for each user head, the item heads that reach its maximum, as bits.
#define FW_MAXSIM(T)                                                                                                 \
    FW_EXPORT int FW_NAME(fw_maxsim_forward_##T)(int threads, const Size* sizes, const T* user, const T* item,       \
                                                 T* scores, int32_t* wins) {                                         \
        return forward<T>({sizes[0], sizes[1], sizes[2], sizes[3], user, item}, threads, scores, wins);              \
    }                                                                                                                \
    FW_EXPORT int FW_NAME(fw_maxsim_backward_##T)(int threads, const Size* sizes, const T* user, const T* item,      \
                                                  const int32_t* wins, const T* grad, T* gu, T* gi) {                \
        return backward<T>({sizes[0], sizes[1], sizes[2], sizes[3], user, item}, threads, wins, grad, gu, gi);       \
    }

FW_MAXSIM(float)
FW_MAXSIM(double)
