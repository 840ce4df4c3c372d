// AutoInt's interacting layer (Song et al., CIKM 2019, Equations 5 to 8), forward and backward: projections, attention
// of the fields of a row to one another, residual, LayerNorm and ReLU.
#include "field_attention_exports.h"

FW_INTERACTING(float, float, Exact<float>)
FW_INTERACTING(double, double, Exact<double>)
