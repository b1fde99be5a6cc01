// Models of a given shape with random weights and a vocabulary of filler tokens: timing at full
// size needs no download.
#pragma once

#include "model/model_shape.h"
#include "weights/random_file.h"

namespace headrace::model {

// Matrices are normal with variance 1 / columns, so that a product keeps the variance of its input;
// those that add to the residual stream are smaller by sqrt(2 * num_layers), as in GPT-2. Norms are
// 1
// +- 0.1, biases +- 0.1. Matrices have `type`, vectors f32. The vocabulary is byte-level BPE
// without merges: the 256 bytes, bos, eos, and words. invalid_argument: a field breaks a rule, or
// rows are not whole blocks of `type`.
Result<RandomFile> make_random_model(const ModelShape& shape, WeightType type, std::uint64_t seed);

}  // namespace headrace::model
