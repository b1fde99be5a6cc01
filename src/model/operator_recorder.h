// An executor that lists the operators of a step, with their bytes and FLOP.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/plan.h"
#include "executor/executor.h"
#include "model/decoder.h"
#include "model/step_cost.h"

namespace headrace::model {

// The list is that of Decoder::forward(). With an executor the operators are run on it too, but for
// those named `skipped`, whose outputs keep their contents; a step that is timed makes no list.
class OperatorRecorder final : public Executor {
 public:
  // `device` is what the operators are counted for; it need not be present, as long as there is no
  // executor. `memory` is what device() returns.
  OperatorRecorder(const Decoder& decoder, const DeviceInfo& device, Device& memory)
      : decoder_(decoder), info_(device), memory_(memory) {}
  OperatorRecorder(const Decoder& decoder, Executor& executor, std::string_view skipped,
                   bool is_listed)
      : decoder_(decoder),
        info_(executor.device().info()),
        memory_(executor.device()),
        executor_(&executor),
        skipped_(skipped),
        is_listed_(is_listed) {}

  std::vector<OperatorCost> take() { return std::move(costs_); }

  Device& device() override { return memory_; }
  DType activation_dtype() const override;
  MatmulMode mode() const override;
  Stream stream() const override { return executor_ == nullptr ? nullptr : executor_->stream(); }
  Result<Weight> prepare(WeightType format, std::int64_t rows, std::int64_t columns,
                         const WeightBlocks& blocks) override;
  Result<Rows> alloc(std::int64_t num_rows, std::int64_t width, DType dtype) override;
  Status begin_step(const Batch& batch, const KvView& kv, const AttentionSpec& spec) override;
  Status embed(const Weight& embedding, const Rows& out) override;
  Status gather(const Rows& x, const Rows& out) override;
  Status rms_norm(const Rows& x, const Buffer& weight, float eps, const Rows& out) override;
  Status linear(const Linear& call) override;
  Status rope_append(const Rows& qkv, std::int64_t layer, const Rows& q) override;
  Status attention(const Rows& q, std::int64_t layer, const Rows& out) override;
  Status swiglu(const Rows& gate_up, const Rows& out) override;
  // Operators that are listed, or left out, have to be called.
  Result<bool> repeat_step(const void*, const float*) override { return false; }
  Status end_step() override;
  Status wait() override;

 private:
  bool is_cuda() const { return info_.device_type == HEADRACE_CUDA; }
  double weight_bytes(const Weight& weight) const;
  double whole_bytes(std::int64_t num_tokens) const;
  double stored_bytes(std::int64_t num_tokens) const;
  double read_bytes(std::int64_t first, std::int64_t seqlen_q, std::int64_t seqlen_k) const;
  std::string_view name_of(const Linear& call) const;
  void add(std::string_view name, OperatorCost call);
  // Lists a call, and runs it.
  template <class Cost, class Run>
  Status pass(std::string_view name, Cost cost, Run run);
  // Runs a call that is listed with the product before it.
  template <class Run>
  Status pass_with(std::string_view product, Run run);

  const Decoder& decoder_;
  const DeviceInfo info_;
  Device& memory_;
  Executor* const executor_ = nullptr;
  const std::string_view skipped_;  // of the caller
  const bool is_listed_ = true;
  std::vector<OperatorCost> costs_;
  const Batch* batch_ = nullptr;
  const AttentionSpec* spec_ = nullptr;
  KvView kv_{};
  Plan plan_;
  bool has_swiglu_ = false;  // the last product of gate and up
  bool has_append_ = false;  // the last of Q, K and V
};

}  // namespace headrace::model
