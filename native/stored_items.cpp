// MaxSim of stored items [N, K, P] in float32, bfloat16 or int8 with a few users' heads [U, H, P].
#if defined(__AVX2__) || defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include "maxsim.h"
#include "parallel.h"

namespace {

constexpr Size ITEMS = 4;  // items scored with a group of user heads before the next group is read
constexpr Size SLICES = 128;

// The largest products of N vectors of user heads with an item head so far.
template <class T, int N>
struct Best {
    Vec<T> value[N];
    IVec<T> spoilt[N];  // all ones in lanes with a NaN product

    FW_MEMBER Best() {
        FW_UNROLL for (int t = 0; t < N; ++t) value[t] = all<T>(T(-__builtin_inf())), spoilt[t] = IVec<T>{};
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
    FW_MEMBER Vec<T> result(int t) const { return spoilt[t] ? all<T>(T(__builtin_nan(""))) : value[t]; }
};

// The heads of all users are in consecutive lanes, so that several users with few heads share a vector. A user's score
// is the sum of its lanes in a fixed order: it does not depend on the other users of the call.
struct Stored {
    Size users, heads, items, dim, count;  // U, H, K, P, and the number of scores per user
    const int64_t* rows;                   // [count] rows of the items to score; null: all items in order
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

// Scoring of items as floats. Without byte instructions int8 items use this too, with the same integer values: the
// users' integers as floats, and the items' integers times their heads' scales.
struct FloatUsers {
    typedef float Element;
    const Stored& c;
    Groups<float> groups;
    Vec<float> *columns, *scales;  // [vectors * P]; [vectors], int8 only

    explicit FloatUsers(const Stored& c) : c(c), groups(c.users * c.heads) {}
    size_t size() const { return sizeof(Vec<float>) * groups.vectors * (c.dim + 1); }
    Size item_size() const { return c.items * c.dim; }

    void fill(void* memory, const float* users) {
        columns = (Vec<float>*)memory, scales = nullptr;
        to_columns<float>(columns, users, groups, c.dim);
    }
    int fill(void* memory, const int8_t* users, const float* user_scales) {
        const Size numbers = groups.heads * c.dim;
        Scratch copy(sizeof(float) * numbers);
        if (!copy.memory) return 1;
        float* as_float = (float*)copy.begin();
        for (Size n = 0; n < numbers; ++n) as_float[n] = users[n];
        fill(memory, as_float);
        scales = columns + groups.vectors * c.dim;
        for (Size head = 0; head < groups.vectors * lanes<float>(); ++head)
            ((float*)scales)[head] = head < groups.heads ? user_scales[head] : 0.0f;
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

    // The largest product of each user head of a group with an item's heads, times its scale if it has one.
    FW_MEMBER void meet(Vec<float>* to, const float* item, const float*, Size group) const {
        with_width(groups.width(group), [&](auto n) {
            constexpr int N = decltype(n)::value;
            const Size first = groups.first(group);
            Best<float, N> best;
            Size k = 0;
            for (; k + ROWS <= c.items; k += ROWS)
                best.template meet<ROWS>(item + k * c.dim, columns + first * c.dim, c.dim);
            for (; k < c.items; ++k) best.template meet<1>(item + k * c.dim, columns + first * c.dim, c.dim);
            FW_UNROLL for (int t = 0; t < N; ++t)
                to[first + t] = scales ? scales[first + t] * best.result(t) : best.result(t);
        });
    }
    FW_MEMBER bool is_spoilt(const float*) const { return false; }
};

#if (defined(__AVX512BW__) && FW_BYTES == 64) || (defined(__AVX2__) && FW_BYTES == 32)
// Scoring of items as bytes: a lane multiplies and adds four bytes at once. The instructions need one unsigned operand,
// so 128 is added to the items, and a sum starts at -128 times the sum of its user head. Users' integers are at most
// 63, so that a sum of two products, at most 2 * 255 * 63, fits into 16 bits.
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
        const Vec<float> scale = all<float>(scales[k]);
        FW_UNROLL for (int t = 0; t < N; ++t)
            best[t] = greater_of(best[t], scale * __builtin_convertvector(sums[k][t], Vec<float>));
    }
}

struct ByteUsers {
    typedef uint8_t Element;
    const Stored& c;
    Groups<float> groups;
    Size quads;
    Ints *columns, *start;  // [vectors * quads]; -128 times the sums of the heads [vectors]
    Vec<float>* scales;     // [vectors], zeros after the last head

    explicit ByteUsers(const Stored& c) : c(c), groups(c.users * c.heads), quads((c.dim + 3) / 4) {}
    size_t size() const { return sizeof(Ints) * groups.vectors * (quads + 2); }
    Size item_size() const { return c.items * quads * 4; }

    int fill(void* memory, const int8_t* users, const float* user_scales) {
        constexpr Size L = lanes<float>();
        columns = (Ints*)memory, start = columns + groups.vectors * quads, scales = (Vec<float>*)(start + groups.vectors);
        for (Size group = 0; group < groups.count; ++group) {
            const Size N = groups.width(group), first = groups.first(group);
            int8_t* out = (int8_t*)(columns + first * quads);
            for (Size t = 0; t < N; ++t) {
                for (Size l = 0; l < L; ++l) {
                    const Size head = (first + t) * L + l;
                    int32_t sum = 0;
                    for (Size p = 0; p < quads * 4; ++p) {
                        const bool real = head < groups.heads && p < c.dim;
                        const int8_t q = real ? users[head * c.dim + p] : int8_t(0);
                        out[((p / 4 * N + t) * L + l) * 4 + p % 4] = q;
                        sum += q;
                    }
                    start[first + t][l] = -128 * sum;
                    scales[first + t][l] = head < groups.heads ? user_scales[head] : 0.0f;
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

    FW_MEMBER void meet(Vec<float>* to, const uint8_t* item, const float* head_scales, Size group) const {
        with_width(groups.width(group), [&](auto n) {
            constexpr int N = decltype(n)::value;
            const Size first = groups.first(group);
            Vec<float> best[N];
            FW_UNROLL for (int t = 0; t < N; ++t) best[t] = all<float>(-__builtin_inff());
            const Ints* own = columns + first * quads;
            Size k = 0;
            for (; k + ROWS <= c.items; k += ROWS)
                meet_bytes<ROWS, N>(best, item + k * quads * 4, head_scales + k, own, start + first, quads);
            for (; k < c.items; ++k)
                meet_bytes<1, N>(best, item + k * quads * 4, head_scales + k, own, start + first, quads);
            FW_UNROLL for (int t = 0; t < N; ++t) to[first + t] = scales[first + t] * best[t];
        });
    }
    // Integers cannot be NaN, but a scale can.
    FW_MEMBER bool is_spoilt(const float* head_scales) const {
        for (Size k = 0; k < c.items; ++k)
            if (head_scales[k] != head_scales[k]) return true;
        return false;
    }
};
#else
typedef FloatUsers ByteUsers;
#endif

typedef float Four __attribute__((vector_size(16)));

FW_INLINE float sum_of(const float* from, Size n) {
    Vec<float> whole = Vec<float>{};
    Four four = Four{};
    float rest = 0;
    Size i = 0;
    for (; i + lanes<float>() <= n; i += lanes<float>()) whole += loaded<Vec<float>>(from + i);
    for (; i + 4 <= n; i += 4) four += loaded<Four>(from + i);
    for (; i < n; ++i) rest += from[i];
    return sum_lanes<float>(whole) + ((four[0] + four[1]) + (four[2] + four[3])) + rest;
}

template <class Users, class Item>
int score_stored(const Stored& c, int threads, const Users& users, const Item* items) {
    typedef typename Users::Element Element;
    const Size vectors = users.groups.vectors, block = users.groups.count > 1 ? ITEMS : 1;
    const Size blocks = (c.count + block - 1) / block;
    const Size slices = least(blocks, SLICES);
    bool failed = false;
    auto body = [&](int64_t slice) {
        Scratch memory(sizeof(Element) * users.item_size() * block), found(sizeof(Vec<float>) * vectors * block);
        if (!memory.memory || !found.memory) {
            report(failed);
            return;
        }
        Vec<float>* best = (Vec<float>*)found.begin();
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
            for (Size group = 0; group < users.groups.count; ++group)
                for (Size i = 0; i < here; ++i) users.meet(best + i * vectors, ready[i], scales[i], group);
            for (Size i = 0; i < here; ++i) {
                const bool spoilt = users.is_spoilt(scales[i]);
                const float* of_heads = (const float*)(best + i * vectors);
                for (Size u = 0; u < c.users; ++u)
                    c.scores[u * c.count + n + i] =
                        spoilt ? __builtin_nanf("") : sum_of(of_heads + u * c.heads, c.heads);
            }
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

Stored described(const Size* sizes, const int64_t* rows, const float* item_scales, float* scores) {
    return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], rows, item_scales, scores};
}

}  // namespace

// sizes: U, H, K, P, count; rows [count] or null; scores [U, count].
FW_EXPORT int FW_NAME(fw_maxsim_stored_float32)(int threads, const Size* sizes, const float* user, const float* items,
                                                const int64_t* rows, float* scores) {
    return score_floats(described(sizes, rows, nullptr, scores), threads, user, items);
}
FW_EXPORT int FW_NAME(fw_maxsim_stored_bfloat16)(int threads, const Size* sizes, const float* user,
                                                 const uint16_t* items, const int64_t* rows, float* scores) {
    return score_floats(described(sizes, rows, nullptr, scores), threads, user, items);
}
FW_EXPORT int FW_NAME(fw_maxsim_stored_int8)(int threads, const Size* sizes, const int8_t* user,
                                             const float* user_scales, const int8_t* items, const float* item_scales,
                                             const int64_t* rows, float* scores) {
    return score_bytes(described(sizes, rows, item_scales, scores), threads, user, user_scales, items);
}
