// The factorization machine's logit (Rendle, ICDM 2010, Equation 1 by Lemma 3.1) directly from ids and tables, forward
// and backward: the fields' vectors are never copied out of their tables.
//
// A row's sums stay in registers, a vector of columns at a time. In the backward pass every thread reads all ids, and
// adds to its own rows of the tables' gradients: the terms of a table row are added in the order of the batch for any
// number of threads.
#include "parallel.h"
#include "vec.h"

namespace {

constexpr Size SLICES = 64;  // slices of a batch in the forward pass

template <class T>
struct Machine {
    Size batch, fields, rows, dim;
    const T *table, *first;  // [R, D], [R]
    const int32_t* ids;      // [B, F]
};

template <class T, class V>
FW_INLINE V loaded(const T* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}
template <class T, class V>
FW_INLINE void store(T* to, V v) {
    __builtin_memcpy(to, &v, sizeof v);
}

// Columns d of a batch row: writes their sum over the fields to `sums`, returns twice their contribution to the logit.
template <class T, class V>
FW_INLINE V column(const Machine<T>& c, const int32_t* ids, Size d, T* sums) {
    V sum = V{}, squares = V{};
    for (Size f = 0; f < c.fields; ++f) {
        const V x = loaded<T, V>(c.table + Size(ids[f]) * c.dim + d);
        sum += x;
        squares += x * x;
    }
    if (sums) store<T, V>(sums + d, sum);
    return sum * sum - squares;
}

template <class T>
void forward_row(const Machine<T>& c, Size b, T* logits, T* sums) {
    const int32_t* ids = c.ids + b * c.fields;
    T* own = sums ? sums + b * c.dim : nullptr;
    Vec<T> wide = all<T>(0);
    T twice = 0, linear = 0;
    Size d = 0;
    for (; d + lanes<T>() <= c.dim; d += lanes<T>()) wide += column<T, Vec<T>>(c, ids, d, own);
    for (; d < c.dim; ++d) twice += column<T, T>(c, ids, d, own);
    for (Size f = 0; f < c.fields; ++f) linear += c.first[ids[f]];
    logits[b] = linear + T(0.5) * (twice + sum_lanes<T>(wide));
}

// The first of positions [begin, end) whose id is out of range, or -1.
template <class T>
Size no_row(const Machine<T>& c, Size begin, Size end) {
    for (Size n = begin; n < end; ++n)
        if (uint64_t(Size(c.ids[n])) >= uint64_t(c.rows)) return n;
    return -1;
}

// Logits [B] and, on request, the sums of the fields' vectors [B, D]. `bad` is set to the smallest position of an id
// that is out of range, or -1.
template <class T>
int forward(const Machine<T>& c, int threads, T* logits, T* sums, Size* bad) {
    threads = worth(threads, c.batch * c.fields * c.dim);
    const Size slices = c.batch < SLICES ? (c.batch > 0) : SLICES;
    Size first_bad[SLICES];
    auto body = [&](Size k) {
        const Size begin = c.batch * k / slices, end = c.batch * (k + 1) / slices;
        first_bad[k] = no_row(c, begin * c.fields, end * c.fields);
        if (first_bad[k] >= 0) return;
        for (Size b = begin; b < end; ++b) forward_row<T>(c, b, logits, sums);
    };
    parallel(slices, threads, body);
    *bad = -1;
    for (Size k = slices - 1; k >= 0; --k)
        if (first_bad[k] >= 0) *bad = first_bad[k];
    return 0;
}

// The gradient of x: g (sum - x).
template <class T, class V>
FW_INLINE void add_columns(T* to, const T* x, const T* sum, T g) {
    store<T, V>(to, loaded<T, V>(to) + g * (loaded<T, V>(sum) - loaded<T, V>(x)));
}

// Adds to the gradients of the tables [R, D] and [R]. `bad` as in the forward pass, since ids in shared memory may have
// changed.
template <class T>
int backward(const Machine<T>& c, int threads, const T* sums, const T* grad, T* into_table, T* into_first, Size* bad) {
    *bad = no_row(c, 0, c.batch * c.fields);
    if (*bad >= 0) return 0;
    const uint64_t owners = uint64_t(worth(threads, c.batch * c.fields * c.dim));
    auto body = [&](Size k) {
        for (Size b = 0; b < c.batch; ++b) {
            const T g = grad[b];
            for (Size f = 0; f < c.fields; ++f) {
                const Size row = Size(c.ids[b * c.fields + f]);
                // Few rows may cause most of the work, so blocks of 8 rows are assigned to threads by a hash.
                if (mixed<uint32_t>(uint32_t(row >> 3)) * owners >> 32 != uint64_t(k)) continue;
                const T *x = c.table + row * c.dim, *sum = sums + b * c.dim;
                T* to = into_table + row * c.dim;
                Size d = 0;
                for (; d + lanes<T>() <= c.dim; d += lanes<T>()) add_columns<T, Vec<T>>(to + d, x + d, sum + d, g);
                for (; d < c.dim; ++d) add_columns<T, T>(to + d, x + d, sum + d, g);
                into_first[row] += g;
            }
        }
    };
    parallel(Size(owners), threads, body);
    return 0;
}

template <class T>
Machine<T> described(const Size* sizes, const T* table, const T* first, const int32_t* ids) {
    return {sizes[0], sizes[1], sizes[2], sizes[3], table, first, ids};
}

}  // namespace

// sizes: B, F, R, D. `sums` may be null if no backward pass follows. Gradients are added to the given arrays.
#define FW_FM(T)                                                                                                      \
    FW_EXPORT int FW_NAME(fw_fm_forward_##T)(int threads, const Size* sizes, const T* table, const T* first,          \
                                             const int32_t* ids, T* logits, T* sums, Size* bad) {                     \
        return forward<T>(described<T>(sizes, table, first, ids), threads, logits, sums, bad);                        \
    }                                                                                                                 \
    FW_EXPORT int FW_NAME(fw_fm_backward_##T)(int threads, const Size* sizes, const T* table, const T* first,         \
                                              const int32_t* ids, const T* sums, const T* grad, T* into_table,        \
                                              T* into_first, Size* bad) {                                             \
        return backward<T>(described<T>(sizes, table, first, ids), threads, sums, grad, into_table, into_first, bad); \
    }

FW_FM(float)
FW_FM(double)
