// The suite `bits`: results must not depend on how a call is made. Runs random cases of the grid in
// several equivalent ways and compares the bytes of the outputs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <utility>

#include "base/math.h"
#include "conformance/slices.h"
#include "conformance/status_line.h"
#include "conformance/suites.h"

namespace headrace::testing {
namespace {

constexpr int kCases = 600, kSmallCases = 60;
// Random cases are drawn for each that a kernel takes, at most: some take few of the grid's, or
// none, and have tests of their own.
constexpr int kMostDraws = 10;

// Query `i` of a dense, bottom-right causal batch as a decode step.
headrace_attention_tensors decode_step(const headrace_attention_tensors& t, const Shape& s,
                                       std::int64_t i) {
  const std::int64_t keys = i + 1 + s.seqlen_k - s.seqlen_q;
  headrace_attention_tensors one = t;
  one.q = sliced(t.q, 1, i, 1);
  one.out = sliced(t.out, 1, i, 1);
  one.k = sliced(t.k, 1, 0, keys);
  one.v = sliced(t.v, 1, 0, keys);
  one.lse = sliced(t.lse, 2, i, 1);
  one.bias = sliced(sliced(t.bias, 2, i, 1), 3, 0, keys);
  one.mask = sliced(sliced(t.mask, 2, i, 1), 3, 0, keys);
  return one;
}

struct Bytes {
  std::vector<unsigned char> out, lse;
  std::string failure;
  std::string refusal;  // nonempty: the kernel refused and did not run
  bool operator==(const Bytes&) const = default;
};

// Runs tensors whose outputs are in the case's memory; reads and resets them.
Bytes run_bytes(const Target& target, Case& test_case, const headrace_attention_tensors& tensors,
                const headrace_attention_options& options, int num_threads,
                const TuningConfig& config = {}) {
  Bytes bytes;
  const Result<Problem> problem = validate(tensors, options);
  if (!problem.ok()) {
    bytes.failure = Result<Problem>(problem).failure().message;
    return bytes;
  }
  bytes.refusal = target.kernel->refuses(problem.value(), target.device);
  if (!bytes.refusal.empty()) return bytes;
  Plan plan;
  plan.problem = problem.value();
  plan.device = target.device;
  plan.device.num_units = num_threads;
  plan.kernel = target.kernel;
  plan.config = config;
  plan.schedule = target.kernel->plan(plan.problem, plan.device, config);
  test_case.reset_outputs();
  if (Status bad = run_plan(plan, tensors, options)) bytes.failure = bad->message;
  bytes.out = take_written(tensors.out).bytes;
  if (tensors.lse.rank != 0) bytes.lse = take_written(tensors.lse).bytes;
  return bytes;
}

CaseName with_values(CaseName name, std::span<const std::pair<Axis, int>> values) {
  for (const auto& [axis, value] : values)
    name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
  return name;
}

class BitsOfKernel {
 public:
  BitsOfKernel(const Target& target, Report& report) : target_(target), report_(report) {}

  void check(const CaseName& name) {
    set_current_case(0, replay_line(std::string(target_.kernel->name), name) + " --suite bits");
    Case test_case(name);
    const Bytes whole = run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 1);
    compare(repeat_, name, whole,
            run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 1));
    for (const int num_threads : kThreadCounts)
      compare(threads_, name, whole,
              run_bytes(target_, test_case, test_case.tensors(), test_case.options(), num_threads));
    check_configs(test_case, whole);
    if (name.values[Axis::dropout] == 0) check_alone(ragged_, test_case, whole);
    check_pages(name, whole);
    if (name.seed % 3 == 0) check_splits(name);
    if (name.seed % 3 == 1) check_heads(name);
    check_decode(name);
  }

  bool is_refused(const Case& test_case) const {
    return !target_.kernel->refuses(make_call(test_case).value().problem, target_.device).empty();
  }

  // For a single case, reports only the classes that compared something.
  void finish_one() {
    for (const EqualBits* c :
         {&repeat_, &threads_, &configs_, &batch_, &ragged_, &decode_, &splits_, &pages_})
      if (c->num_compared > 0) c->add_to(report_, target_);
  }
  // num_missing: cases that were wanted and not found. is_part: of the suite, which has cases of
  // every class.
  void finish(int num_missing, bool is_part) {
    is_part_ = is_part;
    for (const EqualBits* c : {&repeat_, &threads_, &batch_, &ragged_, &decode_})
      add_unless_refused(*c, num_missing);
    add_unless_refused(configs_, num_without_configs_ + num_missing);
    add_unless_refused(splits_, num_splits_refused_ + num_missing);
    add_unless_refused(pages_, num_pages_refused_ + num_missing);
  }

 private:
  void compare(EqualBits& c, const CaseName& name, const Bytes& expected, const Bytes& got) {
    c.compare(report_, target_, name,
              !got.failure.empty() ? got.failure
              : expected == got    ? ""
                                   : "different bits");
  }

  void add_unless_refused(const EqualBits& c, int num_refused) {
    if (c.num_compared == 0 && (num_refused > 0 || is_part_)) {
      report_.checks.push_back({c.id, c.title, std::string(target_.kernel->name),
                                num_refused > 0 ? "refused" : "not applicable"});
    } else {
      c.add_to(report_, target_);
    }
  }

  void compare_part(EqualBits& c, Case& test_case, const Bytes& whole,
                    const headrace_attention_tensors& part,
                    const headrace_attention_options& options) {
    const headrace_attention_tensors& all = test_case.tensors();
    const Bytes expected{part_of(all.out, whole.out, part.out),
                         part_of(all.lse, whole.lse, part.lse), "", ""};
    const Bytes got = run_bytes(target_, test_case, part, options, 2);
    if (got.refusal.empty())
      compare(c, test_case.name(), expected, got);  // for example without keys
  }

  // The choices that headrace tune measures.
  void check_configs(Case& test_case, const Bytes& whole) {
    constexpr int kThreads = 5;
    DeviceInfo device = target_.device;
    if (!is_on_gpu(target_)) device.num_units = kThreads;
    const auto configs = configs_of(*target_.kernel, make_call(test_case).value().problem, device);
    if (configs.empty()) ++num_without_configs_;
    for (const TuningConfig& config : configs)
      compare(configs_, test_case.name(), whole,
              run_bytes(target_, test_case, test_case.tensors(), test_case.options(),
                        device.num_units, config));
  }

  // One sequence of the batch on its own.
  void check_alone(EqualBits& ragged, Case& test_case, const Bytes& whole) {
    const Shape& s = test_case.shape();
    if (s.batch < 2 || whole.out.empty()) return;
    const auto b =
        static_cast<std::size_t>(test_case.name().seed) % static_cast<std::size_t>(s.batch);
    if (!s.is_ragged) {
      compare_part(batch_, test_case, whole,
                   batch_entry(test_case.tensors(), static_cast<std::int64_t>(b)),
                   test_case.options());
    } else if (s.lengths_q[b] > 0) {
      headrace_attention_options options = test_case.options();
      options.max_seqlen_q = options.max_seqlen_k = 0;
      compare_part(ragged, test_case, whole, sequence_alone(test_case.tensors(), s, b), options);
    }
  }

  // The same keys in pages. Kernels without pages are left out.
  void check_pages(const CaseName& name, const Bytes& whole) {
    Case test_case(name);
    test_case.store_keys(KeyStorage::pages);
    const Bytes got = run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 2);
    if (got.refusal.empty()) {
      compare(pages_, name, whole, got);
    } else {
      ++num_pages_refused_;
    }
  }

  // Heads that one task computes together, with V of another head_dim than K.
  void check_heads(const CaseName& name) {
    const bool is_large = name.values.number(Axis::head_dim) > 128;
    const std::pair<Axis, int> values[] = {
        {Axis::lengths, static_cast<int>(Lengths::decode)},
        {Axis::head_dim_v, static_cast<int>(is_large ? DimV::smaller : DimV::larger)},
        {Axis::ragged, static_cast<int>(RaggedKind::dense)},
        {Axis::layout, static_cast<int>(Layout::bshd)}};
    Case test_case(with_values(name, values));
    if (is_refused(test_case)) return;
    check_configs(test_case,
                  run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 1));
  }

  // Key splits depend on the length of the sequence itself, not of the longest one.
  void check_splits(const CaseName& name) {
    const std::pair<Axis, int> values[] = {
        {Axis::lengths, static_cast<int>(Lengths::long_keys)},
        {Axis::batch, 1 + name.seed / 8 % 3},  // more than one entry
        {Axis::ragged, static_cast<int>(RaggedKind::random)},
        {Axis::num_splits, 2 + name.seed / 4 % 2},  // more than one split
        {Axis::dropout, 0},
        {Axis::strict_rows, 0}};
    Case test_case(with_values(name, values));
    if (is_refused(test_case)) {
      ++num_splits_refused_;  // some kernels do not split keys
      return;
    }
    check_alone(splits_, test_case,
                run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 1));
  }

  // strict_rows: a row of a causal prefill equals the decode step that computes it.
  void check_decode(CaseName name) {
    name.values.value[static_cast<std::size_t>(Axis::causal)] = 1;
    name.values.value[static_cast<std::size_t>(Axis::strict_rows)] = 1;
    for (const Axis off : {Axis::ragged, Axis::tree_mask, Axis::dropout, Axis::num_splits})
      name.values.value[static_cast<std::size_t>(off)] = 0;
    Case test_case(name);
    const Shape& s = test_case.shape();
    if (s.seqlen_q == 0 || is_refused(test_case)) return;  // the values or head_dim_v differ
    const std::int64_t i = name.seed % s.seqlen_q;
    if (i + 1 + s.seqlen_k - s.seqlen_q <= 0) return;
    const Bytes whole = run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 2);
    compare_part(decode_, test_case, whole, decode_step(test_case.tensors(), s, i),
                 test_case.options());
  }

  const Target& target_;
  Report& report_;
  EqualBits repeat_{"repeat", "the same call twice", "bits"};
  EqualBits threads_{"threads", "1, 2, 3, 5 and 16 threads", "bits"};
  EqualBits configs_{"configs", "every tuned choice that the kernel offers", "bits"};
  EqualBits batch_{"batch", "a batch entry alone", "bits"};
  EqualBits ragged_{"ragged", "a ragged sequence alone, as a dense batch of one", "bits"};
  EqualBits splits_{"splits", "the same with split keys", "bits"};
  EqualBits pages_{"pages", "the same keys in pages", "bits"};
  bool is_part_ = false;
  int num_splits_refused_ = 0, num_pages_refused_ = 0, num_without_configs_ = 0;
  EqualBits decode_{"strict_rows", "a prefill row and its decode step", "bits"};
};

}  // namespace

Report run_bits(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "bits";
  StatusLine status;
  for (const Target& target : chosen_targets(options)) {
    if (target.kernel->name == "cpu_reference") continue;  // a plain loop: nothing can differ
    Random random(options.seed * 1000003u);
    BitsOfKernel kernel(target, report);
    const int all = options.tier == Tier::small ? kSmallCases : kCases;
    int missing = ceil_div(all, options.num_shards);
    for (int n = 0; missing > 0 && n < kMostDraws * all; ++n) {
      const CaseName name = random_case(random);
      if (n % options.num_shards != options.shard || kernel.is_refused(Case(name))) continue;
      status.show(format_text("{}: {} cases left", target.kernel->name, missing));
      kernel.check(name);
      --missing;
    }
    kernel.finish(missing, options.num_shards > 1);
  }
  set_current_case(0, "");
  run_gradient_bits(options, report);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

int replay_bits_case(const CaseName& name, const SuiteOptions& options) {
  Report report;
  report.suite = "bits";
  for (const Target& target : chosen_targets(options)) {
    BitsOfKernel kernel(target, report);
    if (kernel.is_refused(Case(name))) continue;
    kernel.check(name);
    kernel.finish_one();
  }
  std::fputs(format_report(report, "text").c_str(), stdout);
  return report.ok() ? 0 : 1;
}

}  // namespace headrace::testing
