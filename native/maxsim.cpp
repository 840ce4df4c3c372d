// MaxSim, IntTower's late interaction (Li et al., CIKM 2022): the sum over user heads of the largest product with any
// item head; of pairs of rows with its gradient, and of stored items against users.
//
// A lane is a user head. A tile holds the sums of a few item heads with a few vectors of user heads in registers, so
// that the maximum over item heads is element by element, and only a finished row's or item's sum crosses lanes.
#if defined(__AVX2__) || defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include "parallel.h"
#include "tiles.h"

// A tile is a function of its own: inlined into all that surrounds it, its sums would not stay in registers.
#define FW_ALONE __attribute__((noinline))

namespace {

constexpr Size WORD = 32;         // item heads whose wins one word holds
constexpr Size ITEMS = 4;         // stored items that all users meet before the next ones are read
constexpr Size TRAINING_SLICES = 256, STORED_SLICES = 128;

template <class T>
using IVec = decltype(Vec<T>{} > Vec<T>{});  // what a comparison gives: lanes of all ones or zeros

// Every lane is the value; a subtraction of 0 folds away, an addition would have to turn -0 into 0.
template <class T>
FW_INLINE Vec<T> spread(T value) {
    return value - Vec<T>{};
}
template <class V, class T>
FW_INLINE V loaded(const T* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

// User heads in groups of at most TILE vectors, as equal as can be: a group stands as columns [P][vectors].
template <class T>
struct Groups {
    Size heads, vectors, count;

    explicit Groups(Size heads) : heads(heads), vectors((heads + lanes<T>() - 1) / lanes<T>()) {
        count = (vectors + TILE - 1) / TILE;
    }
    Size first(Size group) const { return vectors * group / count; }  // vector of it
    Size width(Size group) const { return first(group + 1) - first(group); }
    // All ones in the lanes of vector v that are heads.
    FW_MEMBER IVec<T> real(Size v) const {
        IVec<T> mask;
        for (int l = 0; l < lanes<T>(); ++l) mask[l] = v * lanes<T>() + l < heads ? -1 : 0;
        return mask;
    }
};

// ---- Columns: rows [L][P] turned into P vectors, L x L numbers at a time, by exchanging blocks of 1, 2, 4, ... ----

template <int... I>
struct Indices {};
template <int N, int... I>
struct Counted : Counted<N - 1, N - 1, I...> {};
template <int... I>
struct Counted<0, I...> {
    typedef Indices<I...> Type;
};
#if defined(__clang__)
#define FW_SHUFFLE(T, a, b, index) __builtin_shufflevector(a, b, (index)...)
#else
#define FW_SHUFFLE(T, a, b, index) __builtin_shuffle(a, b, UVec<T>{typename VecOf<T>::Word(index)...})
#endif
template <class T, int STEP, int... I>
FW_INLINE void exchange(Vec<T>& a, Vec<T>& b, Indices<I...>) {
    const Vec<T> low = FW_SHUFFLE(T, a, b, (I / STEP % 2 ? lanes<T>() + I - STEP : I));
    b = FW_SHUFFLE(T, a, b, (I / STEP % 2 ? lanes<T>() + I : I + STEP));
    a = low;
}
template <class T, int STEP>
FW_INLINE void exchange_all(Vec<T> (&rows)[lanes<T>()]) {
    constexpr int PAIRS = lanes<T>() / 2;
    FW_UNROLL for (int i = 0; i < PAIRS; ++i) {
        const int a = i / STEP * 2 * STEP + i % STEP;
        exchange<T, STEP>(rows[a], rows[a + STEP], typename Counted<lanes<T>()>::Type());
    }
    if constexpr (STEP > 1) exchange_all<T, STEP / 2>(rows);
}

// Rows [heads][P] of one user as groups of columns; lanes beyond the last head hold zeros.
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
                    exchange_all<T, L / 2>(block);
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

// ---- Products: R item heads with N vectors of user heads ----

template <class T, int R, int N>
FW_INLINE void products(Vec<T> (&sums)[R][N], const T* items, const Vec<T>* columns, Size P) {
    FW_UNROLL for (int k = 0; k < R; ++k) {
        FW_UNROLL for (int t = 0; t < N; ++t) sums[k][t] = Vec<T>{};
    }
    for (Size p = 0; p < P; ++p) {
        FW_UNROLL for (int k = 0; k < R; ++k) {
            const Vec<T> w = spread<T>(items[k * P + p]);
            FW_UNROLL for (int t = 0; t < N; ++t) sums[k][t] += w * columns[p * N + t];
        }
    }
}

// The largest product of N vectors of user heads with any item head so far.
template <class T, int N>
struct Best {
    Vec<T> value[N];
    IVec<T> spoilt[N];  // all ones where a product was NaN

    FW_MEMBER Best() {
        FW_UNROLL for (int t = 0; t < N; ++t) value[t] = spread<T>(T(-__builtin_inf())), spoilt[t] = IVec<T>{};
    }
    template <int R>
    FW_ALONE void meet(const T* items, const Vec<T>* columns, Size P) {
        Vec<T> sums[R][N];
        products<T, R, N>(sums, items, columns, P);
        FW_UNROLL for (int k = 0; k < R; ++k) {
            FW_UNROLL for (int t = 0; t < N; ++t) {
                spoilt[t] |= sums[k][t] != sums[k][t];
                value[t] = greater_of(value[t], sums[k][t]);
            }
        }
    }
    FW_MEMBER Vec<T> result(int t) const { return spoilt[t] ? spread<T>(T(__builtin_nan(""))) : value[t]; }
};

// The same, with the item heads that reach the largest product as bits: all of those that are equal.
template <class T, int N>
struct Winners {
    Vec<T> value[N];
    IVec<T> spoilt[N];
    UVec<T> word[N];

    FW_MEMBER Winners() {
        FW_UNROLL for (int t = 0; t < N; ++t) value[t] = spread<T>(T(-__builtin_inf())), spoilt[t] = IVec<T>{};
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

// ---- Training: rows of users and items in pairs ----

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
    UVec<T> words[N];  // of the block of item heads at hand
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
        // A block that beat the earlier ones takes their wins away.
        for (Size earlier = 0; earlier < w; ++earlier)
            for (int t = 0; t < N; ++t)
                for (Size l = 0; l < lanes<T>(); ++l) {
                    const Size head = (first + t) * lanes<T>() + l;
                    if (head < c.heads && best.value[t][l] > before[t][l]) wins[head * W + earlier] = 0;
                }
    }
    for (int t = 0; t < N; ++t) {
        const Vec<T> value = best.spoilt[t] ? spread<T>(T(__builtin_nan(""))) : best.value[t];
        total += groups.real(first + t) ? value : Vec<T>{};
        if (!any_lane<T>((UVec<T>)best.spoilt[t])) continue;
        for (Size l = 0; l < lanes<T>(); ++l) {
            const Size head = (first + t) * lanes<T>() + l;
            if (head < c.heads && best.spoilt[t][l])
                for (Size w = 0; w < W; ++w) wins[head * W + w] = 0;
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

template <class T>
int forward(const Rows<T>& c, int threads, T* scores, int32_t* wins) {
    const Groups<T> groups(c.heads);
    const Size slices = least(c.batch, TRAINING_SLICES);
    bool failed = false;
    auto body = [&](int64_t slice) {
        Scratch memory(sizeof(Vec<T>) * groups.vectors * c.dim);
        if (!memory.memory) {
            failed = true;
            return;
        }
        Vec<T>* columns = (Vec<T>*)memory.begin();
        for (Size b = c.batch * slice / slices; b < c.batch * (slice + 1) / slices; ++b) {
            to_columns<T>(columns, c.user + b * c.heads * c.dim, groups, c.dim);
            Vec<T> total = Vec<T>{};
            for (Size group = 0; group < groups.count; ++group)
                with_width(groups.width(group), [&](auto n) {
                    row_group<T, decltype(n)::value>(c, c.item + b * c.items * c.dim, columns + groups.first(group) * c.dim,
                                             groups, groups.first(group), total, wins + b * c.heads * c.words());
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

// A user head's gradient goes to the item heads that it chose, in equal shares; where its maximum was NaN, it chose
// none, and NaN goes to all, as in PyTorch.
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
    const Size slices = least(c.batch, TRAINING_SLICES), U = c.heads * c.dim, I = c.items * c.dim;
    auto body = [&](int64_t slice) {
        for (Size b = c.batch * slice / slices; b < c.batch * (slice + 1) / slices; ++b)
            backward_row<T>(c, c.user + b * U, c.item + b * I, wins + b * c.heads * c.words(), grad[b], gu + b * U,
                            gi + b * I);
    };
    parallel(slices, threads, body);
    return 0;
}

// ---- Serving: stored items [N, K, P] against a few users' heads [U, H, P] ----

struct Stored {
    Size users, heads, items, dim, count;  // U, H, K, P, and how many scores a user wants
    const int64_t* rows;                   // [count] numbers of the items scored; without them, all in their order
    const float* item_scales;              // [N, K], int8 only
    float* scores;                         // [U, count]
};

FW_INLINE void widen(float* __restrict to, const uint16_t* __restrict from, Size n) {  // bfloat16
    for (Size i = 0; i < n; ++i) {
        const uint32_t word = uint32_t(from[i]) << 16;
        __builtin_memcpy(to + i, &word, sizeof word);
    }
}
FW_INLINE void widen(float* __restrict to, const int8_t* __restrict from, float scale, Size n) {
    for (Size i = 0; i < n; ++i) to[i] = scale * float(from[i]);
}

// Users whose items come as floats; int8 items, too, where there are no instructions for bytes: the same integers, of
// users alone and of items times their heads' scales.
struct FloatUsers {
    typedef float Element;
    const Stored& c;
    Groups<float> groups;
    Vec<float> *columns, *scales;  // [U][vectors * P]; [U][vectors], int8 only

    explicit FloatUsers(const Stored& c) : c(c), groups(c.heads) {}
    size_t size() const { return sizeof(Vec<float>) * c.users * groups.vectors * (c.dim + 1); }
    Size item_size() const { return c.items * c.dim; }

    void fill(void* memory, const float* users) {
        columns = (Vec<float>*)memory, scales = nullptr;
        for (Size u = 0; u < c.users; ++u)
            to_columns<float>(columns + u * groups.vectors * c.dim, users + u * c.heads * c.dim, groups, c.dim);
    }
    int fill(void* memory, const int8_t* users, const float* user_scales) {
        const Size numbers = c.users * c.heads * c.dim;
        Scratch copy(sizeof(float) * numbers);
        if (!copy.memory) return 1;
        float* as_float = (float*)copy.begin();
        for (Size n = 0; n < numbers; ++n) as_float[n] = users[n];
        fill(memory, as_float);
        scales = columns + c.users * groups.vectors * c.dim;
        for (Size n = 0; n < c.users * groups.vectors * lanes<float>(); ++n) {
            const Size width = groups.vectors * lanes<float>(), head = n % width;
            ((float*)scales)[n] = head < c.heads ? user_scales[n / width * c.heads + head] : 0.0f;
        }
        return 0;
    }

    const float* prepared(float*, const float* item, const float*) const { return item; }
    const float* prepared(float* scratch, const uint16_t* item, const float*) const {
        widen(scratch, item, item_size());
        return scratch;
    }
    const float* prepared(float* scratch, const int8_t* item, const float* head_scales) const {
        for (Size k = 0; k < c.items; ++k) widen(scratch + k * c.dim, item + k * c.dim, head_scales[k], c.dim);
        return scratch;
    }

    FW_MEMBER float score(const float* item, const float*, Size user) const {
        Vec<float> total = Vec<float>{};
        for (Size group = 0; group < groups.count; ++group)
            with_width(groups.width(group), [&](auto n) {
                constexpr int N = decltype(n)::value;
                const Size first = user * groups.vectors + groups.first(group);
                Best<float, N> best;
                Size k = 0;
                for (; k + ROWS <= c.items; k += ROWS)
                    best.template meet<ROWS>(item + k * c.dim, columns + first * c.dim, c.dim);
                for (; k < c.items; ++k) best.template meet<1>(item + k * c.dim, columns + first * c.dim, c.dim);
                for (int t = 0; t < N; ++t) {
                    if (scales)
                        total += scales[first + t] * best.result(t);
                    else
                        total += groups.real(groups.first(group) + t) ? best.result(t) : Vec<float>{};
                }
            });
        return sum_lanes<float>(total);
    }
};

#if (defined(__AVX512BW__) && FW_BYTES == 64) || (defined(__AVX2__) && FW_BYTES == 32)
// Users whose items come as bytes, four of which a lane multiplies and adds at once. The instructions want one side
// unsigned: items are moved up by 128, and a sum starts at -128 times that of its user head. Users' integers are at
// most 63, so that a sum of two products, at most 2 * 255 * 63, fits 16 bits.
typedef int32_t Ints __attribute__((vector_size(FW_BYTES)));

FW_INLINE Ints add_products(Ints sum, Ints items, Ints users) {
#if defined(__AVX512VNNI__) && FW_BYTES == 64
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)items, (__m512i)users);
#elif FW_BYTES == 64
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)items, (__m512i)users);
    return sum + (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)items, (__m256i)users);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

FW_INLINE void move_up(uint8_t* __restrict to, const int8_t* __restrict from, Size n) {
    for (Size i = 0; i < n; ++i) to[i] = uint8_t(from[i]) ^ 0x80;
}

template <int R, int N>
FW_ALONE void meet_bytes(Vec<float> (&best)[N], const uint8_t* items, const float* scales, const Ints* columns,
                         const Ints* start, Size quads) {
    Ints sums[R][N];
    FW_UNROLL for (int k = 0; k < R; ++k) {
        FW_UNROLL for (int t = 0; t < N; ++t) sums[k][t] = start[t];
    }
    for (Size q = 0; q < quads; ++q) {
        FW_UNROLL for (int k = 0; k < R; ++k) {
            int32_t four;
            __builtin_memcpy(&four, items + (k * quads + q) * 4, sizeof four);
            const Ints w = Ints{} + four;
            FW_UNROLL for (int t = 0; t < N; ++t) sums[k][t] = add_products(sums[k][t], w, columns[q * N + t]);
        }
    }
    FW_UNROLL for (int k = 0; k < R; ++k) {
        const Vec<float> scale = spread<float>(scales[k]);
        FW_UNROLL for (int t = 0; t < N; ++t)
            best[t] = greater_of(best[t], scale * __builtin_convertvector(sums[k][t], Vec<float>));
    }
}

struct ByteUsers {
    typedef uint8_t Element;
    const Stored& c;
    Groups<float> groups;
    Size quads;
    Ints *columns, *start;  // [U][vectors * quads]; -128 times the sums of the heads [U][vectors]
    Vec<float>* scales;     // [U][vectors], zeros beyond the last head

    explicit ByteUsers(const Stored& c) : c(c), groups(c.heads), quads((c.dim + 3) / 4) {}
    size_t size() const { return sizeof(Ints) * c.users * groups.vectors * (quads + 2); }
    Size item_size() const { return c.items * quads * 4; }

    int fill(void* memory, const int8_t* users, const float* user_scales) {
        constexpr Size L = lanes<float>();
        const Size vectors = c.users * groups.vectors;
        columns = (Ints*)memory, start = columns + vectors * quads, scales = (Vec<float>*)(start + vectors);
        for (Size u = 0; u < c.users; ++u) {
            for (Size group = 0; group < groups.count; ++group) {
                const Size N = groups.width(group), first = groups.first(group);
                int8_t* out = (int8_t*)(columns + (u * groups.vectors + first) * quads);
                for (Size t = 0; t < N; ++t) {
                    for (Size l = 0; l < L; ++l) {
                        const Size head = (first + t) * L + l, v = u * groups.vectors + first + t;
                        int32_t sum = 0;
                        for (Size p = 0; p < quads * 4; ++p) {
                            const bool real = head < c.heads && p < c.dim;
                            const int8_t q = real ? users[(u * c.heads + head) * c.dim + p] : int8_t(0);
                            out[((p / 4 * N + t) * L + l) * 4 + p % 4] = q;
                            sum += q;
                        }
                        start[v][l] = -128 * sum;
                        scales[v][l] = head < c.heads ? user_scales[u * c.heads + head] : 0.0f;
                    }
                }
            }
        }
        return 0;
    }

    const uint8_t* prepared(uint8_t* scratch, const int8_t* item, const float*) const {
        if (c.dim % 4 == 0) {
            move_up(scratch, item, item_size());
            return scratch;
        }
        for (Size k = 0; k < c.items; ++k)
            for (Size p = 0; p < quads * 4; ++p)
                scratch[k * quads * 4 + p] = (p < c.dim ? uint8_t(item[k * c.dim + p]) : 0) ^ 0x80;
        return scratch;
    }

    FW_MEMBER float score(const uint8_t* item, const float* head_scales, Size user) const {
        Vec<float> total = Vec<float>{};
        for (Size group = 0; group < groups.count; ++group)
            with_width(groups.width(group), [&](auto n) {
                constexpr int N = decltype(n)::value;
                const Size first = user * groups.vectors + groups.first(group);
                Vec<float> best[N];
                FW_UNROLL for (int t = 0; t < N; ++t) best[t] = spread<float>(-__builtin_inff());
                const Ints* own = columns + first * quads;
                Size k = 0;
                for (; k + ROWS <= c.items; k += ROWS)
                    meet_bytes<ROWS, N>(best, item + k * quads * 4, head_scales + k, own, start + first, quads);
                for (; k < c.items; ++k)
                    meet_bytes<1, N>(best, item + k * quads * 4, head_scales + k, own, start + first, quads);
                FW_UNROLL for (int t = 0; t < N; ++t) total += scales[first + t] * best[t];
            });
        return sum_lanes<float>(total);
    }
};
#else
typedef FloatUsers ByteUsers;
#endif

template <class Users, class Item>
int score_stored(const Stored& c, int threads, const Users& users, const Item* items) {
    typedef typename Users::Element Element;
    const Size block = c.users > 1 ? ITEMS : 1, blocks = (c.count + block - 1) / block;
    const Size slices = least(blocks, STORED_SLICES);
    bool failed = false;
    auto body = [&](int64_t slice) {
        Scratch memory(sizeof(Element) * users.item_size() * block);
        if (!memory.memory) {
            failed = true;
            return;
        }
        const Element* ready[ITEMS];
        const float* scales[ITEMS];
        for (Size n = blocks * slice / slices * block; n < least(c.count, blocks * (slice + 1) / slices * block);
             n += block) {
            const Size here = least(block, c.count - n);
            for (Size i = 0; i < here; ++i) {
                const Size at = (c.rows ? c.rows[n + i] : n + i) * c.items;
                scales[i] = c.item_scales ? c.item_scales + at : nullptr;
                ready[i] = users.prepared((Element*)memory.begin() + i * users.item_size(), items + at * c.dim,
                                          scales[i]);
            }
            for (Size u = 0; u < c.users; ++u)
                for (Size i = 0; i < here; ++i) c.scores[u * c.count + n + i] = users.score(ready[i], scales[i], u);
        }
    };
    parallel(slices, threads, body);
    return failed;
}

template <class Item>
int score_floats(const Stored& c, int threads, const float* user, const Item* items) {
    FloatUsers users(c);
    Scratch memory(users.size());
    if (!memory.memory) return 1;
    users.fill(memory.begin(), user);
    return score_stored(c, threads, users, items);
}
int score_bytes(const Stored& c, int threads, const int8_t* user, const float* user_scales, const int8_t* items) {
    ByteUsers users(c);
    Scratch memory(users.size());
    if (!memory.memory || users.fill(memory.begin(), user, user_scales)) return 1;
    return score_stored(c, threads, users, items);
}

}  // namespace

// sizes: B, H, K, P. wins [B, H, ceil(K / 32)]: of every user head, the item heads that reach its maximum, as bits.
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

// sizes: U, H, K, P, count; rows [count] or null; scores [U, count].
FW_EXPORT int FW_NAME(fw_maxsim_stored_float32)(int threads, const Size* sizes, const float* user, const float* items,
                                                const int64_t* rows, float* scores) {
    return score_floats({sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], rows, nullptr, scores}, threads, user, items);
}
FW_EXPORT int FW_NAME(fw_maxsim_stored_bfloat16)(int threads, const Size* sizes, const float* user,
                                                 const uint16_t* items, const int64_t* rows, float* scores) {
    return score_floats({sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], rows, nullptr, scores}, threads, user, items);
}
FW_EXPORT int FW_NAME(fw_maxsim_stored_int8)(int threads, const Size* sizes, const int8_t* user,
                                             const float* user_scales, const int8_t* items, const float* item_scales,
                                             const int64_t* rows, float* scores) {
    return score_bytes({sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], rows, item_scales, scores}, threads, user,
                       user_scales, items);
}
