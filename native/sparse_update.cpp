// Rows of a large table: gather, sum of gradients by row, and an optimizer step on the touched rows only.
//
// Ids are sorted once (stable, so that a row's occurrences keep their order in the batch). The gradients of equal ids
// are then summed in that order, and their row is updated. No result depends on the number of threads. Rows of a table
// that exceeds the caches are prefetched.
#include "parallel.h"
#include "vec.h"

namespace {

constexpr Size SLICES = 32;  // slices of groups; sums over all groups are per slice, then added in slice order
constexpr Size AHEAD = 12;   // groups between the prefetch of a row and its use
constexpr int DIGIT = 11;    // maximum bits of one pass of the sort

template <class T>
FW_INLINE void ask(const T* row, Size dim) {
    const char *at = (const char*)row, *end = (const char*)(row + dim);
    for (; at < end; at += 64) __builtin_prefetch(at);
}

// out[0..dim) = row[0..dim), without a function call for short rows.
template <class T>
FW_INLINE void copy_row(T* out, const T* row, Size dim) {
    typedef Vec<T> V;
    Size d = 0;
    for (; d + lanes<T>() <= dim; d += lanes<T>()) {
        V v;
        __builtin_memcpy(&v, row + d, sizeof v);
        __builtin_memcpy(out + d, &v, sizeof v);
    }
    for (; d < dim; ++d) out[d] = row[d];
}

// Gathers rows of the table by id. `bad` is set to the smallest position of an id that is out of range, or -1.
template <class T, class Id>
int gather(int threads, Size count, Size rows, Size dim, const T* table, const Id* ids, T* out, Size* bad) {
    threads = worth(threads, count * dim);
    const Size slices = count < 4 * SLICES ? 1 : SLICES;
    Size first_bad[SLICES];
    auto body = [&](Size k) {
        const Size begin = count * k / slices, end = count * (k + 1) / slices;
        first_bad[k] = -1;
        for (Size n = begin; n < end; ++n)
            if (uint64_t(Size(ids[n])) >= uint64_t(rows)) {
                first_bad[k] = n;
                return;
            }
        for (Size n = begin; n < end; ++n) {
            if (n + AHEAD < end) ask(table + Size(ids[n + AHEAD]) * dim, dim);
            copy_row<T>(out + n * dim, table + Size(ids[n]) * dim, dim);
        }
    };
    parallel(slices, threads, body);
    *bad = -1;
    for (Size k = slices - 1; k >= 0; --k)
        if (first_bad[k] >= 0) *bad = first_bad[k];
    return 0;
}

// out[ids[n]] += grads[n], in the order of n for any number of threads: each block of rows belongs to one thread.
template <class T, class Id>
int scatter(int threads, Size count, Size rows, Size dim, const T* grads, const Id* ids, T* out, Size* bad) {
    *bad = -1;
    for (Size n = 0; n < count; ++n)
        if (uint64_t(Size(ids[n])) >= uint64_t(rows)) {
            *bad = n;
            return 0;
        }
    const uint64_t owners = uint64_t(worth(threads, count * dim));
    auto body = [&](Size k) {
        for (Size n = 0; n < count; ++n) {
            // Frequent rows are adjacent (a field's first rows), so blocks of 64 rows are assigned by a hash.
            const Size row = Size(ids[n]);
            const uint64_t draw = mixed<uint32_t>(uint32_t(row >> 6));
            if (draw * owners >> 32 != uint64_t(k)) continue;
            T* to = out + row * dim;
            const T* from = grads + n * dim;
            Size d = 0;
            for (; d + lanes<T>() <= dim; d += lanes<T>()) {
                Vec<T> a, b;
                __builtin_memcpy(&a, to + d, sizeof a);
                __builtin_memcpy(&b, from + d, sizeof b);
                a += b;
                __builtin_memcpy(to + d, &a, sizeof a);
            }
            for (; d < dim; ++d) to[d] += from[d];
        }
    };
    parallel(Size(owners), threads, body);
    return 0;
}

// Positions sorted by id, then by position: a radix sort from the lowest digit. Returns the order [count], the distinct
// ids [groups], and the start of each group in the order [groups + 1].
template <class Id>
int group(Size count, Size rows, const Id* ids, int32_t* order, int32_t* starts, int32_t* distinct, Size* groups,
          Size* bad) {
    *groups = 0;
    *bad = -1;
    starts[0] = 0;
    if (count == 0) return 0;
    int bits = 1;
    while (bits < 31 && (Size(1) << bits) < rows) ++bits;
    const int passes = (bits + DIGIT - 1) / DIGIT, digit = (bits + passes - 1) / passes;
    const Size values = Size(1) << digit;
    Scratch memory(sizeof(uint64_t) * 2 * count + sizeof(Size) * passes * values);
    if (!memory.memory) return 1;
    uint64_t *from = (uint64_t*)memory.begin(), *to = from + count;
    Size* counts = (Size*)(to + count);  // [passes][values]: counts of all digits, made in one pass over the ids
    for (Size v = 0; v < passes * values; ++v) counts[v] = 0;
    for (Size n = 0; n < count; ++n) {
        const Size id = Size(ids[n]);
        if (uint64_t(id) >= uint64_t(rows)) {
            *bad = n;
            return 0;
        }
        from[n] = uint64_t(id) << 32 | uint64_t(n);
        for (int p = 0; p < passes; ++p) ++counts[p * values + ((id >> (p * digit)) & (values - 1))];
    }
    for (int p = 0; p < passes; ++p) {
        Size* place = counts + p * values;
        Size before = 0;
        for (Size v = 0; v < values; ++v) {
            const Size own = place[v];
            place[v] = before;
            before += own;
        }
        const int shift = 32 + p * digit;
        for (Size n = 0; n < count; ++n) to[place[(from[n] >> shift) & uint64_t(values - 1)]++] = from[n];
        uint64_t* swap = from;
        from = to;
        to = swap;
    }
    Size g = 0;
    for (Size n = 0; n < count; ++n) {
        const int32_t id = int32_t(from[n] >> 32);
        order[n] = int32_t(from[n] & 0xFFFFFFFFu);
        if (n == 0 || id != distinct[g - 1]) {
            starts[g] = int32_t(n);
            distinct[g++] = id;
        }
    }
    starts[g] = int32_t(count);
    *groups = g;
    return 0;
}

// Gradients [count, dim] with their positions in groups of equal ids. `shares`: if it is not null, L2 is added at each
// occurrence of a row, times the row's number there, instead of once for each row.
template <class T>
struct Grouped {
    Size count, groups, dim;
    const int32_t *order, *starts, *distinct;
    const T* grads;
    const T* shares;

    Size slices() const { return groups < 2 * SLICES ? 1 : SLICES; }
    // A slice starts at the group that holds, or follows, its share of the positions, so that all slices cost the same.
    Size first(Size k) const {
        const Size position = count * k / slices();
        Size low = 0, high = groups;
        while (low < high) {
            const Size middle = (low + high) / 2;
            if (starts[middle] < position)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
    FW_MEMBER void ask_grads(Size g) const { ask(grads + Size(order[starts[g]]) * dim, dim); }
    FW_MEMBER void ask_share(Size g) const {
        if (shares) __builtin_prefetch(shares + distinct[g]);
    }
    // The strength of L2 on the row of a group.
    template <class Number>
    FW_MEMBER Number l2_of(Size g, Number l2) const {
        return shares ? l2 * Number(shares[distinct[g]]) * Number(starts[g + 1] - starts[g]) : l2;
    }
    // The sum of a group; if it has one gradient, that gradient itself.
    FW_MEMBER const T* sum(Size g, T* scratch) const {
        const Size begin = starts[g], end = starts[g + 1];
        const T* row = grads + Size(order[begin]) * dim;
        if (end - begin == 1) return row;
        copy_row<T>(scratch, row, dim);
        for (Size n = begin + 1; n < end; ++n) {
            if (n + AHEAD < end) ask(grads + Size(order[n + AHEAD]) * dim, dim);
            const T* more = grads + Size(order[n]) * dim;
            for (Size d = 0; d < dim; ++d) scratch[d] += more[d];
        }
        return scratch;
    }
};

// The sum of squares of all groups' gradients, including L2.
template <class T>
int squares(int threads, const Grouped<T>& c, const T* table, double l2, double* total) {
    bool failed = false;
    double sums[SLICES];
    auto body = [&](Size k) {
        Scratch memory(sizeof(T) * c.dim);
        if (!memory.memory) {
            report(failed);
            return;
        }
        const Size end = c.first(k + 1);
        double all_squares = 0;
        for (Size g = c.first(k); g < end; ++g) {
            if (g + AHEAD < end) {
                c.ask_grads(g + AHEAD);
                c.ask_share(g + AHEAD);
                if (l2 != 0) ask(table + Size(c.distinct[g + AHEAD]) * c.dim, c.dim);
            }
            const T *sum = c.sum(g, (T*)memory.begin()), *row = table + Size(c.distinct[g]) * c.dim;
            const double own_l2 = c.l2_of(g, l2);
            double own = 0;
            for (Size d = 0; d < c.dim; ++d) {
                const double x = l2 != 0 ? double(sum[d]) + own_l2 * double(row[d]) : double(sum[d]);
                own += x * x;
            }
            all_squares += own;
        }
        sums[k] = all_squares;
    };
    parallel(c.slices(), threads, body);
    *total = 0;
    if (!failed)
        for (Size k = 0; k < c.slices(); ++k) *total += sums[k];
    return failed;
}

FW_INLINE float root(float x) { return __builtin_sqrtf(x); }
FW_INLINE double root(double x) { return __builtin_sqrt(x); }

enum Rule { SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM };

template <class T>
struct Numbers {
    T rate, l2, scale, eps;
    T new1, keep2, new2;  // Adam's 1 - beta1, beta2, 1 - beta2
    T first, second;      // rate / (1 - beta1^t), sqrt(1 - beta2^t)
};

// The step of one row. `a`, `b`: its rows of the optimizer's states, if the optimizer has them. `l2`: of this row.
template <class T, int RULE>
FW_INLINE void step_row(T* __restrict w, T* __restrict a, T* __restrict b, const T* __restrict grad, Size dim,
                        const Numbers<T>& n, T l2) {
    if (RULE == ROWWISE_ADAGRAD) {
        T sum = 0;
        for (Size d = 0; d < dim; ++d) {
            const T g = (grad[d] + l2 * w[d]) * n.scale;
            sum += g * g;
        }
        *a += sum / T(dim);
        const T rate = n.rate / (root(*a) + n.eps);
        for (Size d = 0; d < dim; ++d) w[d] -= rate * ((grad[d] + l2 * w[d]) * n.scale);
        return;
    }
    for (Size d = 0; d < dim; ++d) {
        const T g = (grad[d] + l2 * w[d]) * n.scale;
        if (RULE == SGD) {
            w[d] -= n.rate * g;
        } else if (RULE == ADAGRAD) {
            a[d] += g * g;
            w[d] -= n.rate * g / (root(a[d]) + n.eps);
        } else {
            a[d] += n.new1 * (g - a[d]);
            b[d] = n.keep2 * b[d] + n.new2 * g * g;
            w[d] -= n.first * a[d] / (root(b[d]) / n.second + n.eps);
        }
    }
}

// WIDTH: dim if it is known at compile time, else 0.
template <class T, int RULE, int WIDTH>
void update_slice(const Grouped<T>& c, Size k, T* table, T* a, T* b, const Numbers<T>& n, T* scratch) {
    const Size dim = WIDTH ? WIDTH : c.dim, end = c.first(k + 1);
    const Size a_dim = RULE == ROWWISE_ADAGRAD ? 1 : dim;
    for (Size g = c.first(k); g < end; ++g) {
        if (g + AHEAD < end) {
            const Size next = c.distinct[g + AHEAD];
            c.ask_grads(g + AHEAD);
            c.ask_share(g + AHEAD);
            ask(table + next * dim, dim);
            if (RULE != SGD) ask(a + next * a_dim, a_dim);
            if (RULE == ADAM) ask(b + next * dim, dim);
        }
        const Size row = c.distinct[g];
        const T* sum = c.sum(g, scratch);
        step_row<T, RULE>(table + row * dim, RULE == SGD ? nullptr : a + row * a_dim,
                          RULE == ADAM ? b + row * dim : nullptr, sum, dim, n, c.l2_of(g, n.l2));
    }
}

template <class T, int RULE>
int update(int threads, const Grouped<T>& c, T* table, T* a, T* b, const Numbers<T>& n) {
    bool failed = false;
    auto body = [&](Size k) {
        Scratch memory(sizeof(T) * c.dim);
        if (!memory.memory) {
            report(failed);
            return;
        }
        T* scratch = (T*)memory.begin();
        if (c.dim == 16)
            update_slice<T, RULE, 16>(c, k, table, a, b, n, scratch);
        else if (c.dim == 1)
            update_slice<T, RULE, 1>(c, k, table, a, b, n, scratch);
        else
            update_slice<T, RULE, 0>(c, k, table, a, b, n, scratch);
    };
    parallel(c.slices(), threads, body);
    return failed;
}

template <class T>
int update_by(int rule, int threads, const Grouped<T>& c, T* table, T* a, T* b, const double* given) {
    const Numbers<T> n = {T(given[0]), T(given[1]), T(given[2]), T(given[3]),
                          T(given[4]), T(given[5]), T(given[6]), T(given[7]), T(given[8])};
    switch (rule) {
        case SGD: return update<T, SGD>(threads, c, table, a, b, n);
        case ADAGRAD: return update<T, ADAGRAD>(threads, c, table, a, b, n);
        case ROWWISE_ADAGRAD: return update<T, ROWWISE_ADAGRAD>(threads, c, table, a, b, n);
        default: return update<T, ADAM>(threads, c, table, a, b, n);
    }
}

}  // namespace

// wide: ids are int64, else int32. sizes: ids, rows of the table (and D). bad: a position whose id is out of range, or
// -1; if there is one, nothing else is written.
FW_EXPORT int FW_NAME(fw_group_rows)(int, int wide, const Size* sizes, const void* ids, int32_t* order, int32_t* starts,
                                     int32_t* distinct, Size* groups, Size* bad) {
    return wide ? group<int64_t>(sizes[0], sizes[1], (const int64_t*)ids, order, starts, distinct, groups, bad)
                : group<int32_t>(sizes[0], sizes[1], (const int32_t*)ids, order, starts, distinct, groups, bad);
}

// sizes of squares and update: gradients, groups, D. shares: [R] or null. numbers: rate, l2, scale, eps, 1 - beta1, beta2, 1 - beta2,
// rate / (1 - beta1^t), sqrt(1 - beta2^t).
#define FW_SPARSE_UPDATE(T)                                                                                           \
    FW_EXPORT int FW_NAME(fw_gather_rows_##T)(int threads, int wide, const Size* sizes, const T* table,               \
                                              const void* ids, T* out, Size* bad) {                                   \
        return wide ? gather<T, int64_t>(threads, sizes[0], sizes[1], sizes[2], table, (const int64_t*)ids, out, bad) \
                    : gather<T, int32_t>(threads, sizes[0], sizes[1], sizes[2], table, (const int32_t*)ids, out, bad); \
    }                                                                                                                 \
    FW_EXPORT int FW_NAME(fw_scatter_rows_##T)(int threads, int wide, const Size* sizes, const T* grads,              \
                                               const void* ids, T* out, Size* bad) {                                  \
        return wide ? scatter<T, int64_t>(threads, sizes[0], sizes[1], sizes[2], grads, (const int64_t*)ids, out, bad)\
                    : scatter<T, int32_t>(threads, sizes[0], sizes[1], sizes[2], grads, (const int32_t*)ids, out, bad);\
    }                                                                                                                 \
    FW_EXPORT int FW_NAME(fw_squares_of_rows_##T)(int threads, const Size* sizes, const int32_t* order,               \
                                                  const int32_t* starts, const int32_t* distinct, const T* grads,     \
                                                  const T* table, double l2, const T* shares, double* total) {        \
        return squares<T>(threads, {sizes[0], sizes[1], sizes[2], order, starts, distinct, grads, shares}, table, l2, \
                          total);                                                                                     \
    }                                                                                                                 \
    FW_EXPORT int FW_NAME(fw_update_rows_##T)(int threads, int rule, const Size* sizes, const int32_t* order,         \
                                              const int32_t* starts, const int32_t* distinct, const T* grads,         \
                                              T* table, T* a, T* b, const double* numbers, const T* shares) {         \
        return update_by<T>(rule, threads, {sizes[0], sizes[1], sizes[2], order, starts, distinct, grads, shares},    \
                            table, a, b, numbers);                                                                    \
    }

FW_SPARSE_UPDATE(float)
FW_SPARSE_UPDATE(double)
