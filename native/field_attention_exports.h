// The C functions of AutoInt's interacting layer.
#pragma once
#include "field_attention_passes.h"

// sizes: B, F, D, A, H; residual (none, projected, identity), norm (none, before, after the ReLU), ReLU on the
// projections, ReLU at the end, dropout threshold. numbers: scale of the scores, epsilon of LayerNorm, factor of the
// elements that dropout keeps. b, norm_weight and norm_bias may be null; then their gradients may be null too.
#define FW_INTERACTING(KIND, T, M)                                                                                     \
    FW_EXPORT int FW_NAME(fw_interacting_forward_##KIND)(                                                              \
        int threads, const Size* sizes, const double* numbers, uint64_t seed, const T* x, const T* W, const T* b,      \
        const T* norm_weight, const T* norm_bias, T* y) {                                                              \
        return forward<M>(described<T>(sizes, numbers, seed, x, W, b, norm_weight, norm_bias), threads, y);            \
    }                                                                                                                  \
    FW_EXPORT int FW_NAME(fw_interacting_backward_##KIND)(                                                             \
        int threads, const Size* sizes, const double* numbers, uint64_t seed, const T* x, const T* W, const T* b,      \
        const T* norm_weight, const T* norm_bias, const T* y, const T* grad, T* gx, T* gW, T* gb, T* gnorm_weight,     \
        T* gnorm_bias) {                                                                                               \
        return backward<M>(described<T>(sizes, numbers, seed, x, W, b, norm_weight, norm_bias), threads, y, grad, gx,  \
                           gW, gb, gnorm_weight, gnorm_bias);                                                          \
    }
