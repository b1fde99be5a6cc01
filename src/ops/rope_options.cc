#include "ops/rope_options.h"

#include <algorithm>
#include <cmath>

#include "core/kv_append_args.h"

namespace headrace {
namespace {

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

Status check_scaling(const headrace_rope_options& o) {
  if (o.scaling < HEADRACE_ROPE_SCALING_NONE || o.scaling > HEADRACE_ROPE_SCALING_LLAMA3)
    return invalid_argument(
        "scaling={}: must be 0 (none) to 5 (llama3); pass a headrace_rope_scaling", o.scaling);
  if (o.scaling != HEADRACE_ROPE_SCALING_NONE && !is_positive(o.factor))
    return invalid_argument("factor={}: must be finite and positive; pass 1 for no scaling",
                            o.factor);
  if (o.scaling != HEADRACE_ROPE_SCALING_DYNAMIC_NTK) return std::nullopt;
  if (o.original_context_length < 1)
    return invalid_argument(
        "original_context_length={}: must be 1 or more with DYNAMIC_NTK; pass the positions that "
        "the model was trained on",
        o.original_context_length);
  if (o.seqlen < 0)
    return invalid_argument(
        "seqlen={}: must not be negative; pass the positions in use, those of this call included",
        o.seqlen);
  return std::nullopt;
}

// Kernels reduce angles of up to 2^31 positions in double.
Status check_frequencies(const double* frequencies, std::int64_t count) {
  constexpr double kMaxFrequency = 1e6;
  for (std::int64_t i = 0; i < count; ++i)
    if (!(std::abs(frequencies[i]) <= kMaxFrequency))
      return invalid_argument(
          "frequencies[{}]={}: must be at most {} radians per position; pass smaller frequencies, "
          "or correct base and factor",
          i, frequencies[i], kMaxFrequency);
  return std::nullopt;
}

RopeOptions core_options(const headrace_rope_options& o, std::int64_t rot_dim) {
  RopeOptions options;
  options.rot_dim = rot_dim;
  options.base = o.base;
  const auto original = static_cast<double>(o.original_context_length);
  switch (o.scaling) {
    case HEADRACE_ROPE_SCALING_LINEAR:
      options.linear_factor = o.factor;
      break;
    case HEADRACE_ROPE_SCALING_NTK:
      options.ntk_factor = o.factor;
      break;
    case HEADRACE_ROPE_SCALING_DYNAMIC_NTK:
      options.ntk_factor = dynamic_ntk_factor(o.factor, original, static_cast<double>(o.seqlen));
      break;
    case HEADRACE_ROPE_SCALING_YARN:
      options.yarn = RopeYarnScaling{.factor = o.factor,
                                     .original_context_length = original,
                                     .beta_fast = o.beta_fast,
                                     .beta_slow = o.beta_slow,
                                     .truncate = o.truncate != 0};
      break;
    case HEADRACE_ROPE_SCALING_LLAMA3:
      options.llama3 = RopeLlama3Scaling{.factor = o.factor,
                                         .low_freq_factor = o.low_freq_factor,
                                         .high_freq_factor = o.high_freq_factor,
                                         .original_context_length = original};
      break;
    default:
      break;
  }
  return options;
}

// That of the scaling unless the caller gives one.
Result<double> attention_factor_of(const headrace_rope_options& o) {
  double factor = o.attention_factor;
  const bool is_yarn = o.scaling == HEADRACE_ROPE_SCALING_YARN && o.frequencies == nullptr;
  if (std::isnan(factor))
    factor = is_yarn ? yarn_attention_factor(o.factor, o.mscale, o.mscale_all_dim) : 1.0;
  if (std::isfinite(static_cast<float>(factor))) return factor;
  return invalid_argument(
      "attention_factor={} (mscale={}, mscale_all_dim={}): must be finite as f32; pass NaN for "
      "that of the scaling",
      factor, o.mscale, o.mscale_all_dim);
}

}  // namespace

headrace_rope_options default_rope_options() {
  return {.struct_size = sizeof(headrace_rope_options),
          .layout = HEADRACE_ROPE_INTERLEAVED,
          .scaling = HEADRACE_ROPE_SCALING_NONE,
          .rot_dim = 0,
          .base = RopeOptions{}.base,
          .factor = 1,
          .original_context_length = 0,
          .seqlen = 0,
          .beta_fast = RopeYarnScaling{}.beta_fast,
          .beta_slow = RopeYarnScaling{}.beta_slow,
          .mscale = 0,
          .mscale_all_dim = 0,
          .low_freq_factor = RopeLlama3Scaling{}.low_freq_factor,
          .high_freq_factor = RopeLlama3Scaling{}.high_freq_factor,
          .attention_factor = NAN,
          .frequencies = nullptr,
          .truncate = 1,
          .reserved = 0};
}

Status check_rope_layout(std::int32_t layout) {
  if (layout == HEADRACE_ROPE_INTERLEAVED || layout == HEADRACE_ROPE_HALVES) return std::nullopt;
  return invalid_argument(
      "layout={}: must be 0 (interleaved) or 1 (halves); pass a headrace_rope_layout", layout);
}

Status fill_rope(const headrace_rope_options& options, std::int64_t rot_dim, double* frequencies,
                 double* attention_factor) {
  HEADRACE_TRY(check_rope_layout(options.layout));
  HEADRACE_TRY(check_scaling(options));
  Result<double> factor = attention_factor_of(options);
  if (!factor.ok()) return std::move(factor.failure());
  double computed[kMaxAppendDim / 2];
  const double* source = options.frequencies;
  if (source == nullptr) {
    HEADRACE_TRY(fill_rope_frequencies(core_options(options, rot_dim), computed));
    source = computed;
  }
  HEADRACE_TRY(check_frequencies(source, rot_dim / 2));
  std::copy_n(source, rot_dim / 2, frequencies);
  if (attention_factor != nullptr) *attention_factor = factor.value();
  return std::nullopt;
}

}  // namespace headrace
