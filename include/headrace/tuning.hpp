/// @file
/// Tuned choices, for C++20: a header-only wrapper of tuning.h.
///
///   headrace::Tuning tuning(headrace::cpu_info());
///   tuning.tune(plan, tensors);
///   tuning.use();  // later plans take the choices
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "headrace/headrace.hpp"
#include "headrace/roofline.hpp"
#include "headrace/tuning.h"

namespace headrace {
inline namespace v0 {

/// headrace_tune_options.
struct TuneOptions {
  std::int32_t num_rounds = 15;                     ///< that decide between two choices
  double round_seconds = 0.01;                      ///< a round takes about as long
  std::vector<Ceiling> ceilings{};                  ///< of the device; may be empty
  std::function<void(void* stream)> before_call{};  ///< not timed; may be empty
};

/// headrace_tuned_call.
struct TunedCall {
  std::string kernel;            ///< "cuda_sm90_fwd"
  std::string call;              ///< "batch=8 seqlen_q=1"
  std::string config;            ///< "tile_m=128"; "": the kernel's own choices are fastest
  double seconds = 0;            ///< with `config`
  double own_seconds = 0;        ///< with the kernel's own choices
  std::int32_t num_configs = 0;  ///< that the kernel offers; 0: not known
  std::int32_t num_timed = 0;    ///< that were timed
};

/// headrace_tuning.
class Tuning {
 public:
  /// An empty table for a device.
  explicit Tuning(const DeviceInfo& device) { check(headrace_tuning_create(&device, &tuning_)); }
  /// headrace_tuning_parse(). Throws Error(HEADRACE_INVALID_ARGUMENT) with the reason why the text
  /// is no table of this device and version.
  Tuning(const DeviceInfo& device, const std::string& text, const std::string& source) {
    check(headrace_tuning_parse(&device, text.data(), text.size(), source.c_str(), &tuning_));
  }
  /// `other` is empty afterwards.
  Tuning(Tuning&& other) noexcept : tuning_(std::exchange(other.tuning_, nullptr)) {}
  /// Swaps the two.
  Tuning& operator=(Tuning&& other) noexcept {
    std::swap(tuning_, other.tuning_);
    return *this;
  }
  Tuning(const Tuning&) = delete;
  Tuning& operator=(const Tuning&) = delete;
  ~Tuning() { headrace_tuning_destroy(tuning_); }

  /// The table as text.
  std::string text() const { return headrace_tuning_text(tuning_); }
  /// Makes later plans of this process take the choices. Copies the table.
  void use() const { check(headrace_tuning_use(tuning_)); }

  /// headrace_plan_tune() of a forward plan.
  TunedCall tune(const Plan& plan, const AttentionTensors& tensors, const TuneOptions& options = {},
                 void* stream = nullptr) {
    return tune(plan, tensors, nullptr, options, stream);
  }
  /// The same of a backward plan.
  TunedCall tune(const Plan& plan, const AttentionTensors& tensors,
                 const AttentionGradients& gradients, const TuneOptions& options = {},
                 void* stream = nullptr) {
    const headrace_attention_gradients c_gradients = gradients.to_c();
    return tune(plan, tensors, &c_gradients, options, stream);
  }

  /// The calls of the table.
  std::vector<TunedCall> calls() const {
    std::vector<TunedCall> all;
    for (std::int64_t i = 0; i < headrace_tuning_count(tuning_); ++i) {
      headrace_tuned_call c{};
      c.struct_size = sizeof c;
      check(headrace_tuning_get(tuning_, i, &c));
      all.push_back(call_of(c));
    }
    return all;
  }

 private:
  static TunedCall call_of(const headrace_tuned_call& c) {
    return {c.kernel, c.call, c.config, c.seconds, c.own_seconds, c.num_configs, c.num_timed};
  }

  TunedCall tune(const Plan& plan, const AttentionTensors& tensors,
                 const headrace_attention_gradients* gradients, const TuneOptions& options,
                 void* stream) {
    const std::vector<headrace_ceiling> ceilings = ceilings_to_c(options.ceilings);
    headrace_tune_options o;
    check(headrace_tune_options_init(&o));
    o.num_rounds = options.num_rounds;
    o.round_seconds = options.round_seconds;
    o.num_ceilings = static_cast<std::int64_t>(ceilings.size());
    o.ceilings = ceilings.empty() ? nullptr : ceilings.data();
    auto before_call = options.before_call;
    o.user = &before_call;
    if (before_call)
      o.before_call = [](void* user, void* call_stream) {
        (*static_cast<std::function<void(void*)>*>(user))(call_stream);
      };
    const headrace_attention_tensors c_tensors = tensors.to_c();
    headrace_tuned_call c{};
    c.struct_size = sizeof c;
    check(headrace_plan_tune(plan.get(), &c_tensors, gradients, nullptr, &o, stream, tuning_, &c));
    return call_of(c);
  }

  headrace_tuning* tuning_ = nullptr;
};

/// Later plans of this process take no tuned choices.
inline void forget_tuning() { check(headrace_tuning_use(nullptr)); }

}  // namespace v0
}  // namespace headrace
