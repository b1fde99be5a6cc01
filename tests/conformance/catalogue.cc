#include "conformance/catalogue.h"

#include <chrono>

#include "conformance/suites.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

// Paging, quantised caches and their tables do not exist for a contiguous cache in CPU memory.
constexpr CatalogueEntry kNotApplicable[] = {
    {"A15", "block table entries out of range", nullptr},
    {"A16", "page capacity exactly full", nullptr},
    {"A17", "scales of a quantised cache", nullptr},
    {"A18", "slots of a cache write out of range", nullptr},
    {"A19", "8-bit keys at a tile edge", nullptr},
    {"A20", "duplicated, shared and shuffled pages", nullptr},
};

void run_entry(const CatalogueEntry& entry, const Target& target, Report& report) {
  const std::string kernel(target.kernel->name);
  if (entry.check == nullptr) {
    report.checks.push_back({entry.id, entry.title, kernel, "not applicable"});
    return;
  }
  const std::string replay =
      "headrace_conformance --suite catalogue --kernel " + kernel + "  # " + entry.id;
  set_current_case(0, replay);
  Check check(target);
  entry.check(check);
  report.checks.push_back(
      {entry.id, entry.title, kernel, check.failures().empty() ? "ok" : "failed"});
  for (const std::string& text : check.failures())
    report.failures.push_back({kernel, std::string(entry.id) + " " + entry.title, text, replay});
}

}  // namespace

void set_element(const headrace_tensor& view, std::int64_t idx, double value) {
  if (static_cast<DType>(view.dtype) == DType::boolean) {
    static_cast<unsigned char*>(view.data)[idx] = value != 0 ? 1 : 0;
  } else {
    store_from_double(static_cast<DType>(view.dtype), view.data, idx, value);
  }
}

void Check::judge_rows(Case& test_case, const std::string& label, bool must_be_finite) {
  Result<Call> call = make_call(test_case);
  if (!call.ok()) {
    failures_.push_back(label + ": not accepted: " + call.failure().message);
    return;
  }
  const Expected expected = expect(test_case, call.value(), true);
  const CaseResult result = judge(target_, test_case, expected, must_be_finite);
  for (const std::string& text : result.failures) failures_.push_back(label + ": " + text);
}

Check::Values Check::run(Case& test_case, const std::string& label) {
  Values values;
  const RunOutput output = run_kernel(target_, test_case, 2);
  for (const std::string& text : output.failures) failures_.push_back(label + ": " + text);
  if (!output.refusal.empty()) failures_.push_back(label + ": refused: " + output.refusal);
  const DType dtype = test_case.shape().dtype;
  const std::size_t count = output.out_bytes.size() / dtype_bytes(dtype);
  for (std::size_t i = 0; i < count; ++i)
    values.out.push_back(
        load_as_double(dtype, output.out_bytes.data(), static_cast<std::int64_t>(i)));
  for (std::size_t i = 0; i < output.lse_bytes.size() / sizeof(float); ++i)
    values.lse.push_back(
        load_as_double(DType::f32, output.lse_bytes.data(), static_cast<std::int64_t>(i)));
  values.bytes = output.out_bytes;
  return values;
}

CaseName plain_name(DType dtype, Data data) {
  CaseName name{};
  const auto set = [&](Axis axis, int value) {
    name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
  };
  set(Axis::dtype, static_cast<int>(dtype));
  set(Axis::data, static_cast<int>(data));
  set(Axis::lse, 1);
  set(Axis::threads, 1);
  name.seed = 5;
  return name;
}

Case plain_case(const PlainShape& s, const CaseName& name) {
  Shape shape;
  shape.dtype = s.dtype;
  shape.batch = s.batch;
  shape.seqlen_q = s.seqlen_q;
  shape.seqlen_k = s.seqlen_k;
  shape.num_heads = s.num_heads;
  shape.num_kv_heads = s.num_kv_heads;
  shape.head_dim = s.head_dim;
  shape.head_dim_v = s.head_dim_v;
  return Case(name, shape);
}

Case plain_case(const PlainShape& shape, Data data) {
  return plain_case(shape, plain_name(shape.dtype, data));
}

Case ragged_case(const PlainShape& s, const std::vector<std::int32_t>& lengths_q,
                 const std::vector<std::int32_t>& lengths_k, const CaseName& name) {
  Shape shape;
  shape.dtype = s.dtype;
  shape.num_heads = s.num_heads;
  shape.num_kv_heads = s.num_kv_heads;
  shape.head_dim = s.head_dim;
  shape.head_dim_v = s.head_dim_v;
  shape.is_ragged = true;
  shape.batch = static_cast<std::int64_t>(lengths_q.size());
  shape.lengths_q = lengths_q;
  shape.lengths_k = lengths_k;
  shape.seqlen_q = shape.seqlen_k = 0;
  for (const std::int32_t n : lengths_q) {
    shape.seqlen_q = std::max<std::int64_t>(shape.seqlen_q, n);
    shape.total_q += n;
  }
  for (const std::int32_t n : lengths_k) {
    shape.seqlen_k = std::max<std::int64_t>(shape.seqlen_k, n);
    shape.total_k += n;
  }
  return Case(name, shape);
}

Report run_catalogue(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "catalogue";
  std::vector<CatalogueEntry> entries;
  for (const auto& part : {value_checks(), exact_checks(), shape_checks()})
    entries.insert(entries.end(), part.begin(), part.end());
  entries.insert(entries.end(), std::begin(kNotApplicable), std::end(kNotApplicable));
  for (const Target& target : chosen_targets(options))
    for (const CatalogueEntry& entry : entries) run_entry(entry, target, report);
  set_current_case(0, "");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace headrace::testing
