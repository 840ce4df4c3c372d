// AutoInt's interacting layer with products in bfloat16 (AVX512-BF16). Operands of the products with the weights are
// rounded to bfloat16, two neighbours to a word; products are summed in float32, as are the scores, the attended values,
// norm, residual and bias, which are computed from float32.
#include <immintrin.h>

#include "field_attention_exports.h"

namespace {

struct Half {
    typedef float Number;
    typedef uint32_t Word;
    typedef UVec<float> Words;
    static constexpr int PAIR = 2;

    static FW_MEMBER Words broadcast(Word word) { return word + Words{}; }
    static FW_MEMBER void add_product(Vec<float>& sum, Words a, Words b) {
        sum = (Vec<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
    // Rounded to nearest, ties to even; NaN stays NaN.
    static uint32_t bits(float number) {
        uint32_t u;
        __builtin_memcpy(&u, &number, sizeof u);
        return number != number ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    }
    static Word word(float first, float second) { return bits(first) | bits(second) << 16; }

    // Lane l of the result: lane l of `first` in its low half, that of `second` in its high half.
    static FW_MEMBER Words interleaved(Vec<float> first, Vec<float> second) {
        const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                               6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
        return (Words)_mm512_permutexvar_epi16(order, both);
    }
    static const Words* words(Words* to, const Vec<float>* from, Size rows, Size columns, Size row_stride) {
        Words* out = to;
        for (Size r = 0; r < rows; ++r, from += row_stride) {
            for (Size d = 0; d + 1 < columns; d += 2) *out++ = interleaved(from[d], from[d + 1]);
            if (columns % 2) *out++ = interleaved(from[columns - 1], Vec<float>{});
        }
        return to;
    }
    static const Word* row_pairs(Word* to, const float* from, Size width, Size count) {
        for (Size l = 0; l < count; l += 2)
            for (Size d = 0; d < width; d += lanes<float>()) {
                Vec<float> first, second = {};
                __builtin_memcpy(&first, from + l * width + d, sizeof first);
                if (l + 1 < count) __builtin_memcpy(&second, from + (l + 1) * width + d, sizeof second);
                const Words pairs = interleaved(first, second);
                __builtin_memcpy(to + l / 2 * width + d, &pairs, sizeof pairs);
            }
        return to;
    }
    static const Word* lane_pairs(Word* to, const Vec<float>* from, Size n) {
        for (Size i = 0; i < n; ++i) {
            const __m256bh rounded = _mm512_cvtneps_pbh((__m512)from[i]);
            __builtin_memcpy(to + i * (lanes<float>() / 2), &rounded, sizeof rounded);
        }
        return to;
    }
};

}  // namespace

FW_INTERACTING(bfloat16, float, Half)
