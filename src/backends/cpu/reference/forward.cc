#include "backends/cpu/reference/forward.h"

#include "backends/cpu/reference/row.h"
#include "core/dtype.h"

namespace headrace::cpu::reference {
namespace {

void store_row(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
               std::int64_t batch_idx, std::int64_t head, std::int64_t q_idx, const Row& row) {
  const std::int64_t out = row_offset(args.out, batch_idx, sequence.row_q + q_idx, head);
  for (std::int64_t d = 0; d < p.head_dim_v; ++d)
    store_from_double(dtype_of(p), args.out.data, out + d, row.out[static_cast<std::size_t>(d)]);
  if (args.lse.data != nullptr) {
    const LseOperand& lse = args.lse;
    store_from_double(dtype_of(p) == DType::f64 ? DType::f64 : DType::f32, lse.data,
                      batch_idx * lse.stride_batch + head * lse.stride_head +
                          (sequence.row_q + q_idx) * lse.stride_q,
                      row.lse);
  }
  if (args.probs.data != nullptr) {  // dense batches only
    const ScoreOperand& probs = args.probs;
    const DType dtype = dtype_of(p) == DType::f64 ? DType::f64 : DType::f32;
    for (std::int64_t j = 0; j < sequence.seqlen_k; ++j)
      store_from_double(dtype, const_cast<void*>(probs.data),
                        batch_idx * probs.stride_batch + head * probs.stride_head +
                            q_idx * probs.stride_q + j * probs.stride_k,
                        row.probs[static_cast<std::size_t>(j)]);
  }
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace, Stream) {
  const Problem& p = plan.problem;
  Row row;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence sequence = sequence_of(p, args, b);
    for (std::int64_t head = 0; head < p.num_heads; ++head) {
      for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
        attention_row(p, args, sequence, b, head, i, row);
        store_row(p, args, sequence, b, head, i, row);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

const Kernel kForwardKernel = {
    .name = "cpu_reference",
    .summary =
        "row by row in double, every feature and dtype, exact NaN propagation; reference, slow",
    .refuses = [](const Problem&, const DeviceInfo&) { return std::string(); },
    .plan =
        [](const Problem&, const DeviceInfo&, const TuningConfig&) {
          Schedule schedule;
          schedule.note =
              "one thread, double, allocates one row of scores: for checking, not for speed";
          return schedule;
        },
    .launch = launch,
};

}  // namespace headrace::cpu::reference
