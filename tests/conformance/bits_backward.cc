// The suite `bits` for deterministic gradients. Random cases, every second one ragged, half of them
// for kernels that only support plain scores.
#include "base/math.h"
#include "conformance/backward.h"
#include "conformance/slices.h"
#include "conformance/status_line.h"

namespace headrace::testing {
namespace {

constexpr int kCases = 200, kSmallCases = 40;

// Entry or sequence `b` of a batch as its own call, without dbias and dsinks, which are sums over
// the batch.
BackwardCall call_alone(const BackwardCall& all, const Shape& s, std::size_t b) {
  BackwardCall one = all;
  const headrace_attention_gradients& g = all.gradients;
  one.gradients.dbias = one.gradients.dsinks = headrace_tensor{};
  if (!s.is_ragged) {
    const auto idx = static_cast<std::int64_t>(b);
    one.tensors = batch_entry(all.tensors, idx);
    for (auto member : {&headrace_attention_gradients::dout, &headrace_attention_gradients::dlse,
                        &headrace_attention_gradients::dq, &headrace_attention_gradients::dk,
                        &headrace_attention_gradients::dv})
      one.gradients.*member = sliced(g.*member, 0, idx, 1);
    return one;
  }
  const PackedRows first = rows_before(s, b);
  one.tensors = sequence_alone(all.tensors, s, b);
  one.options.max_seqlen_q = one.options.max_seqlen_k = 0;
  one.gradients.dout = alone(g.dout, 0, first.q, s.lengths_q[b]);
  one.gradients.dlse = alone(g.dlse, 1, first.q, s.lengths_q[b]);
  one.gradients.dq = alone(g.dq, 0, first.q, s.lengths_q[b]);
  one.gradients.dk = alone(g.dk, 0, first.k, s.lengths_k[b]);
  one.gradients.dv = alone(g.dv, 0, first.k, s.lengths_k[b]);
  return one;
}

// Case number `n`: at least two entries, ragged or not.
CaseName batch_case(Random& random, int n) {
  CaseName name = n % 4 < 2 ? plain_case(random) : random_case(random);
  const auto set = [&](Axis axis, std::int64_t value) {
    name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
  };
  if (name.values[Axis::batch] == 0) set(Axis::batch, random.between(1, 3));
  set(Axis::ragged, n % 2 == 0 ? 0 : random.between(1, 3));
  return name;
}

class BitsOfGradients {
 public:
  BitsOfGradients(const Target& target, Report& report) : target_(target), report_(report) {}

  // False if the kernel refuses the case.
  bool check(const CaseName& name) {
    Case test_case(name);
    test_case.mutable_options().deterministic = 1;
    test_case.make_gradients();
    const BackwardCall call = backward_call(test_case);
    const GradientOutput whole = run_gradients(target_, test_case, call, 1);
    if (!whole.refusal.empty()) return false;
    compare(repeat_, name, whole, run_gradients(target_, test_case, call, 1));
    for (const int num_threads : kThreadCounts)
      compare(threads_, name, whole, run_gradients(target_, test_case, call, num_threads));
    check_configs(test_case, call, whole);
    if (name.values[Axis::dropout] == 0) check_alone(test_case, call, whole);
    return true;
  }

  void finish() {
    for (const EqualBits* c : {&repeat_, &threads_, &batch_, &ragged_}) c->add_to(report_, target_);
    if (configs_.num_compared > 0 || target_.kernel->configs != nullptr)
      configs_.add_to(report_, target_);
  }

 private:
  void compare(EqualBits& c, const CaseName& name, const GradientOutput& expected,
               const GradientOutput& got) {
    std::string text;
    if (const char* name_of = other_bits(expected, got))
      text = format_text("{} has different bits", name_of);
    if (!got.failures.empty()) text = got.failures.front();
    c.compare(report_, target_, name, text);
  }

  // The choices that headrace tune measures.
  void check_configs(Case& test_case, const BackwardCall& call, const GradientOutput& whole) {
    constexpr int kThreads = 5;
    DeviceInfo device = target_.device;
    if (!is_on_gpu(target_)) device.num_units = kThreads;
    const Problem p = validate_backward(call.tensors, call.gradients, call.options).value();
    for (const TuningConfig& config : configs_of(*target_.kernel, p, device))
      compare(configs_, test_case.name(), whole,
              run_gradients(target_, test_case, call, kThreads, config));
  }

  // One sequence of the batch on its own.
  void check_alone(Case& test_case, const BackwardCall& call, const GradientOutput& whole) {
    const Shape& s = test_case.shape();
    const auto b =
        static_cast<std::size_t>(test_case.name().seed) % static_cast<std::size_t>(s.batch);
    if (s.is_ragged && s.lengths_q[b] == 0) return;
    const BackwardCall one = call_alone(call, s, b);
    GradientOutput expected;
    for (std::size_t i = 0; i < std::size(kGradients); ++i) {
      const auto tensor = kGradients[i].tensor;
      expected.bytes[i] = part_of(call.gradients.*tensor, whole.bytes[i], one.gradients.*tensor);
    }
    const GradientOutput got = run_gradients(target_, test_case, one, 2);
    if (got.refusal.empty())  // for example without keys
      compare(s.is_ragged ? ragged_ : batch_, test_case.name(), expected, got);
  }

  const Target& target_;
  Report& report_;
  EqualBits repeat_{"repeat", "gradients of the same call twice", "backward"};
  EqualBits threads_{"threads", "gradients with 1, 2, 3, 5 and 16 threads", "backward"};
  EqualBits configs_{"configs", "gradients with every tuned choice that the kernel offers",
                     "backward"};
  EqualBits batch_{"batch", "gradients of a batch entry alone", "backward"};
  EqualBits ragged_{"ragged", "gradients of a ragged sequence alone, as a dense batch of one",
                    "backward"};
};

}  // namespace

void run_gradient_bits(const SuiteOptions& options, Report& report) {
  StatusLine status;
  for (const Target& target : chosen_backward_targets(options)) {
    if (target.kernel->name == "cpu_reference") continue;  // a plain loop: nothing can differ
    Random random(options.seed * 1000033u);
    BitsOfGradients kernel(target, report);
    const int all = options.tier == Tier::small ? kSmallCases : kCases;
    const int count = ceil_div(all, options.num_shards);
    int num_taken = 0;
    for (int n = 0; num_taken < count && n < 40 * all; ++n) {
      const CaseName name = batch_case(random, n);
      if (n / 4 % options.num_shards != options.shard) continue;  // all kinds, four at a time
      set_current_case(0, replay_line(std::string(target.kernel->name), name));
      status.show(
          format_text("{}: gradients, {} of {} cases", target.kernel->name, num_taken, count));
      num_taken += kernel.check(name) ? 1 : 0;
    }
    kernel.finish();
  }
  set_current_case(0, "");
}

}  // namespace headrace::testing
