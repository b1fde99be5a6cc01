// Inputs that have broken attention kernels before, each with its exact answer or rule. In all
// cases, memory that must not be read holds NaN and every buffer ends at a guard page.
#include "conformance/catalogue.h"

#include <sys/mman.h>

#include <chrono>
#include <memory>

#include "attention/forward.h"

namespace headrace::testing {
namespace {

// ---- A9 to A14: shapes and memory
// --------------------------------------------------------------------

void nothing_at_all(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const Shape& s : {shape(dtype, 0, 5, 16), shape(dtype, 5, 0, 16), shape(dtype, 0, 0, 16),
                           shape(dtype, 3, 3, 16, 2, 1, 0), shape(dtype, 3, 3, 16, 0, 0)}) {
      Lab lab(named(dtype, {}), s);
      check.judge_all(lab);
    }
    Shape ragged = shape(dtype, 0, 0, 16, 2, 1, 3);
    ragged.is_ragged = true;
    ragged.lengths_q = ragged.lengths_k = {0, 0, 0};
    Lab lab(named(dtype, {{Axis::ragged, 1}}), ragged);
    check.judge_all(lab);
  }
}

void odd_lengths(Check& check) {
  for (const std::int64_t n :
       {1, 3, 7, 15, 31, 33, 63, 65, 127, 129, 191, 193, 255, 257, 511, 513}) {
    Lab lab(named(DType::bf16, {}), shape(DType::bf16, 3, n, 16, 3, 1));
    check.judge_all(lab);
    Lab tall(named(DType::f32, {{Axis::causal, 1}}), shape(DType::f32, n, 7, 8, 1, 1));
    check.judge_all(tall);
  }
}

void every_head_dim(Check& check) {
  for (std::int64_t dim = 1; dim <= 576; dim += dim < 40 ? 1 : dim < 260 ? 13 : 79) {
    for (const DType dtype : kDtypes) {
      Shape s = shape(dtype, 2, 19, dim);
      Lab same(named(dtype, {}), s);
      check.judge_all(same);
      s.head_dim_v = 577 - dim;
      Lab other(named(dtype, {}), s);
      check.judge_all(other);
    }
  }
}

void every_layout(Check& check) {
  for (int layout = 0; layout < num_values(static_cast<int>(Axis::layout)); ++layout) {
    for (const DType dtype : kDtypes) {
      Lab many(named(dtype, {{Axis::layout, layout}}), shape(dtype, 50, 150, 40, 4, 2, 2));
      check.judge_all(many);
      Lab few(named(dtype, {{Axis::layout, layout}}), shape(dtype, 1, 150, 40, 4, 2, 2));
      check.judge_all(few);
    }
  }
}

void short_workspace(Check& check) {
  if (is_on_gpu(check.target)) return;
  Lab lab(named(DType::f32, {}), shape(DType::f32, 4, 40, 16));
  if (!check.takes(lab)) return;
  const Call call = make_call(lab.test_case).value();
  Plan plan;
  plan.problem = call.problem;
  plan.device = check.target.device;
  plan.kernel = check.target.kernel;
  plan.schedule = plan.kernel->plan(plan.problem, plan.device, {});
  if (plan.schedule.workspace_bytes == 0) return;
  std::vector<char> memory(plan.schedule.workspace_bytes);
  lab.test_case.reset_outputs();
  const Status status = headrace::run(plan, call.args, {memory.data(), memory.size() - 1}, nullptr);
  if (!status || status->code != ErrorCode::invalid_argument)
    check.fail("a workspace one byte too short was accepted");
  const std::int64_t untouched = take_written(lab.tensors().out).untouched;
  if (untouched != 4 * 2 * 16) check.fail("outputs were written");
}

// Reserved address space; only touched pages have memory.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Sparse(const Sparse&) = delete;
  ~Sparse() {
    if (ok()) munmap(data_, bytes_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

// Strides of 2^30 elements and more: equal bits as from contiguous memory.
void beyond_32_bits(Check& check) {
  if (is_on_gpu(check.target)) return;  // copies are not sparse; the suite "large" covers this
  for (const std::int64_t seqlen_q : {1, 5}) {
    Lab near(named(DType::f32, {}), shape(DType::f32, seqlen_q, 5, 8, 2, 1, 2));
    if (!check.takes(near)) continue;
    const RunOutput expected = check.run(near);
    const std::int64_t stride = (std::int64_t{1} << 30) + 24;
    std::vector<std::unique_ptr<Sparse>> memory;
    headrace_attention_tensors far = near.tensors();
    for (auto member : {&headrace_attention_tensors::q, &headrace_attention_tensors::k,
                        &headrace_attention_tensors::v, &headrace_attention_tensors::out}) {
      headrace_tensor& x = far.*member;
      const headrace_tensor from = x;
      x.strides[1] = stride;
      x.strides[0] = stride * x.shape[1];
      const auto elements = static_cast<std::size_t>(x.strides[0] * x.shape[0]);
      memory.push_back(std::make_unique<Sparse>(elements * sizeof(float)));
      if (!memory.back()->ok()) return check.fail("reserving address space failed");
      x.data = memory.back()->data();
      std::vector<float> values;
      for_each_element(
          from, [&](std::int64_t i) { values.push_back(static_cast<float*>(from.data)[i]); });
      std::size_t n = 0;
      for_each_element(x, [&](std::int64_t i) { static_cast<float*>(x.data)[i] = values[n++]; });
    }
    far.lse = headrace_tensor{};
    const Result<Problem> problem = validate(far, near.test_case.options());
    if (!problem.ok()) return check.fail("large strides were refused");
    Plan plan;
    plan.problem = problem.value();
    plan.device = check.target.device;
    plan.kernel = check.target.kernel;
    plan.schedule = plan.kernel->plan(plan.problem, plan.device, {});
    std::vector<char> workspace(plan.schedule.workspace_bytes);
    if (headrace::run(plan, make_args(plan.problem, far, near.test_case.options()),
                      {workspace.data(), workspace.size()}, nullptr))
      return check.fail("the run failed");
    if (take_written(far.out).bytes != expected.out_bytes)
      check.fail("different bits than from contiguous memory");
  }
  Lab rows(named(DType::bf16, {}), shape(DType::bf16, 70000, 3, 4, 1, 1));
  check.judge_all(rows);
}

// ---- A21, A22 and needles
// -----------------------------------------------------------------------------

void aliasing(Check& check) {
  Lab lab(named(DType::f32, {}), shape(DType::f32, 4, 4, 16, 1, 1));
  lab.fill(lab.tensors().k, [](const Index& i) { return static_cast<double>(i[1] * i[3]) / 16; });
  lab.fill(lab.tensors().v, [](const Index& i) { return static_cast<double>(i[1] * i[3]) / 16; });
  const RunOutput apart = check.run(lab);
  lab.test_case.mutable_tensors().v = lab.tensors().k;  // inputs may overlap
  if (check.run(lab).out_bytes != apart.out_bytes)
    check.fail("k and v in the same memory give different bits");
  headrace_attention_tensors in_place = lab.tensors();
  in_place.out = in_place.q;
  Result<Problem> problem = validate(in_place, lab.test_case.options());
  if (problem.ok() || problem.failure().code != ErrorCode::invalid_argument)
    check.fail("out in the memory of q was accepted");
}

struct Entry {
  const char* id;
  const char* title;
  void (*run)(Check&);  // null: needs a feature that this version lacks
};

constexpr Entry kEntries[] = {
    {"A1", "scores of -1e4 to -2.45e5 and a winner", very_negative_scores},
    {"A1s", "scores that rise or fall along the keys, slowly and steeply", sloping_scores},
    {"A2", "a masked key with a huge score", masked_key_with_huge_score},
    {"A3", "q * 5, k * 3 at short lengths", large_inputs_at_short_lengths},
    {"A4", "rows that see nothing", empty_rows},
    {"A4b", "a bias of the least float, alone and beside each feature", least_bias},
    {"A4s", "sinks of infinity, near it, and of 1", infinite_sinks},
    {"A6", "NaN and infinity in a live q or k", nan_in_a_live_key},
    {"A6v", "NaN in a live v", nan_in_a_live_value},
    {"A7", "infinite scores", infinite_scores},
    {"A8", "the largest, smallest and denormal numbers", ends_of_the_format},
    {"A8f", "few keys, few columns", few_keys_and_columns},
    {"A9", "lengths, batches and heads of 0", nothing_at_all},
    {"A10", "odd lengths", odd_lengths},
    {"A11", "head dims 1 to 576, v of another size", every_head_dim},
    {"A12", "layouts: padded, negative and zero strides, misaligned (A13)", every_layout},
    {"A12b", "layouts do not change bits", same_bits_in_every_layout},
    {"A13", "a workspace one byte short", short_workspace},
    {"A14", "strides beyond 2^30 elements, 70000 queries", beyond_32_bits},
    {"A14r", "ragged batches where a shorter sequence has more splits", ragged_splits},
    {"A14k", "few rows over keys of several splits", few_rows_over_many_keys},
    {"A15", "entries of block tables", nullptr},
    {"A16", "capacity of the paged cache", nullptr},
    {"A17", "scales of quantised inputs", nullptr},
    {"A18", "slots of cache writes", nullptr},
    {"A19", "8-bit probabilities", nullptr},
    {"A20", "shared and shuffled pages", nullptr},
    {"A21", "inputs that overlap, outputs that must not", aliasing},
    {"A22", "edges of windows, by exact counts", window_edges},
    {"needle", "one key has all the weight", needles},
    {"integer", "sums that are exact", integers},
};

}  // namespace

Report run_catalogue(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "catalogue";
  for (const Target& target : chosen_targets(options)) {
    int num_taken = 0, num_refused = 0;
    for (const Entry& entry : kEntries) {
      const std::string kernel(target.kernel->name);
      if (entry.run == nullptr) {
        report.checks.push_back({entry.id, entry.title, kernel, "not applicable"});
        continue;
      }
      const std::string replay =
          "headrace_conformance --suite catalogue --kernel " + kernel + "  # " + entry.id;
      set_current_case(0, replay);
      Check check(target);
      entry.run(check);
      report.checks.push_back(
          {entry.id, entry.title, kernel, check.failures.empty() ? "ok" : "failed"});
      for (const std::string& text : check.failures)
        report.failures.push_back({kernel, entry.id, text, replay});
      num_taken += check.num_taken;
      num_refused += check.num_refused;
    }
    if (num_refused > 0)
      report.notes.push_back(format_text("{} ran {} calls; the fallback ran the {} that it refuses",
                                         target.kernel->name, num_taken, num_refused));
  }
  set_current_case(0, "");
  report.notes.push_back("A5, NaN in memory that must not be read, is part of every case's memory");
  report.notes.push_back("A15 to A20 need the paged and the quantized cache");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace headrace::testing
