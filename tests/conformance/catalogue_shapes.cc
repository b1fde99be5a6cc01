// Shapes, layouts and memory.
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "attention/forward.h"
#include "conformance/catalogue.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};

void set_axis(CaseName& name, Axis axis, int value) {
  name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
}

// A5: NaNs in the memory between elements, behind rows, beyond sequences.
void nan_around(Check& check) {
  for (const DType dtype : kDtypes) {
    for (const Layout layout : {Layout::packed, Layout::padded, Layout::misaligned}) {
      for (const int guard : {0, 1}) {
        CaseName name = plain_name(dtype);
        set_axis(name, Axis::layout, static_cast<int>(layout));
        set_axis(name, Axis::guard, guard);
        set_axis(name, Axis::mask, static_cast<int>(Mask::full));
        set_axis(name, Axis::bias, static_cast<int>(Bias::full));
        Case c = ragged_case(
            {.dtype = dtype, .num_heads = 2, .num_kv_heads = 1, .head_dim = 21, .head_dim_v = 19},
            {3, 0, 40, 1}, {130, 5, 33, 0}, name);
        check.judge_rows(c, format_text("{} layout {} guard {}", dtype_name(dtype),
                                        static_cast<int>(layout), guard));
      }
    }
  }
}

// A9: nothing in some axis. Returns without error and writes what there is.
void empty_axes(Check& check) {
  for (const PlainShape& shape :
       {PlainShape{.seqlen_q = 0, .seqlen_k = 5}, PlainShape{.seqlen_q = 5, .seqlen_k = 0},
        PlainShape{.batch = 0, .seqlen_q = 5, .seqlen_k = 5},
        PlainShape{.seqlen_q = 5, .seqlen_k = 5, .num_heads = 0, .num_kv_heads = 0},
        PlainShape{.seqlen_q = 0, .seqlen_k = 0}}) {
    Case c = plain_case(shape);
    check.judge_rows(c, format_text("batch {} heads {} seqlen_q {} seqlen_k {}", shape.batch,
                                    shape.num_heads, shape.seqlen_q, shape.seqlen_k));
  }
  const CaseName name = plain_name(DType::f32);
  Case none = ragged_case({}, {}, {}, name);
  check.judge_rows(none, "ragged without sequences");
  Case zeros = ragged_case({}, {0, 0}, {0, 0}, name);
  check.judge_rows(zeros, "ragged of empty sequences");
  Case among = ragged_case({}, {0, 7, 0, 1}, {9, 0, 0, 300}, name);
  check.judge_rows(among, "empty sequences among others");
}

// A10.
void odd_lengths(Check& check) {
  constexpr std::int64_t kLengths[] = {1, 3, 7, 15, 31, 33, 63, 65, 127, 129, 191, 193, 255, 257};
  for (const std::int64_t q : kLengths)
    for (const std::int64_t k : kLengths) {
      if (check.is_reference() && q * k > 4000) continue;
      Case c = plain_case({.batch = 1,
                           .seqlen_q = q,
                           .seqlen_k = k,
                           .num_heads = 3,
                           .num_kv_heads = 3,
                           .head_dim = 7,
                           .head_dim_v = 5});
      c.mutable_options().causal = static_cast<std::int32_t>((q + k) / 2 % 3);
      check.judge_rows(c, format_text("seqlen {} and {}", q, k));
    }
}

// A11.
void head_dims(Check& check) {
  for (const DType dtype : kDtypes)
    for (const std::int64_t dim : {1,   4,   8,   16,  21,  40,  59,  64,  72,  80, 96,
                                   111, 128, 160, 192, 203, 224, 256, 288, 512, 576})
      for (const std::int64_t dim_v : {dim, std::int64_t{64}, std::int64_t{1}})
        for (const std::int64_t rows : {1, 30}) {
          Case c = plain_case({.dtype = dtype,
                               .seqlen_q = rows,
                               .seqlen_k = 70,
                               .head_dim = dim,
                               .head_dim_v = dim_v});
          check.judge_rows(c, format_text("{} head_dim {} and {}", dtype_name(dtype), dim, dim_v));
        }
}

// A12: a layout changes no bit.
void layouts(Check& check) {
  for (const DType dtype : kDtypes) {
    const PlainShape shape{.dtype = dtype,
                           .batch = 2,
                           .seqlen_q = 33,
                           .seqlen_k = 140,
                           .num_heads = 4,
                           .num_kv_heads = 2,
                           .head_dim = 24,
                           .head_dim_v = 24};
    CaseName name = plain_name(dtype);
    Case plain = plain_case(shape, name);
    const auto expected = check.run(plain, "contiguous");
    for (const Layout layout :
         {Layout::bhsd, Layout::packed, Layout::padded, Layout::negative, Layout::misaligned}) {
      set_axis(name, Axis::layout, static_cast<int>(layout));
      Case c = plain_case(shape, name);
      c.unlock_inputs();
      // The same numbers, element by element.
      const auto copy = [&](const headrace_tensor& from, const headrace_tensor& to) {
        std::vector<double> values;
        for_each_element(
            from, [&](std::int64_t i) { values.push_back(load_as_double(dtype, from.data, i)); });
        std::size_t n = 0;
        for_each_element(to, [&](std::int64_t i) { set_element(to, i, values[n++]); });
      };
      copy(plain.tensors().q, c.tensors().q);
      copy(plain.tensors().k, c.tensors().k);
      copy(plain.tensors().v, c.tensors().v);
      check.expect_true(check.run(c, "layout").bytes == expected.bytes,
                        format_text("{} layout {} gives other bits", dtype_name(dtype),
                                    static_cast<int>(layout)));
    }
  }
}

// A13: a workspace of any alignment; one byte too few is an error.
void workspaces(Check& check) {
  Case c = plain_case({.seqlen_q = 2, .seqlen_k = 1500, .num_heads = 2, .num_kv_heads = 2});
  const auto expected = check.run(c, "workspace");
  const Result<Call> call = make_call(c);
  Plan plan;
  plan.problem = call.ok() ? make_call(c).value().problem : Problem{};
  plan.device = check.target().device;
  plan.device.num_units = 2;
  plan.kernel = check.target().kernel;
  plan.schedule = plan.kernel->plan(plan.problem, plan.device);
  const std::size_t bytes = plan.schedule.workspace_bytes;
  const AttentionArgs args = make_args(plan.problem, c.tensors(), c.options());
  for (const std::size_t shift :
       {std::size_t{0}, std::size_t{1}, std::size_t{4}, std::size_t{63}}) {
    GuardedBuffer memory(bytes + shift, Guard::after, kNanByte);
    GuardedBuffer front(bytes + shift, Guard::before, kNanByte);
    for (unsigned char* base : {memory.data(), front.data()}) {
      c.reset_outputs();
      const Status bad = run(plan, args, {base + shift, bytes}, nullptr);
      check.expect_true(!bad && take_written(c.tensors().out).bytes == expected.bytes,
                        format_text("workspace shifted by {}", shift));
    }
  }
  if (bytes == 0) return;
  GuardedBuffer small(bytes - 1, Guard::after, kNanByte);
  c.reset_outputs();
  check.expect_true(run(plan, args, {small.data(), bytes - 1}, nullptr).has_value(),
                    "a workspace one byte too small is no error");
  check.expect_true(take_written(c.tensors().out).untouched == c.shape().seqlen_q * 2 * 16,
                    "an error wrote to the output");
}

// Address space without memory: pages appear where something is written.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (is_mapped()) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool is_mapped() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

// A14: neighbours more than 2^31 elements apart, along one axis at a time.
void far_strides(Check& check) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;
  for (const int axis : {0, 1, 2}) {
    for (const std::int64_t rows : {2, 20}) {
      const PlainShape shape{.dtype = DType::f16,
                             .batch = 2,
                             .seqlen_q = rows,
                             .seqlen_k = 3,
                             .num_heads = 2,
                             .num_kv_heads = 2};
      Case c = plain_case(shape);
      const auto expected = check.run(c, "near");
      headrace_tensor& k = c.mutable_tensors().k;
      const headrace_tensor near = k;
      SparseMemory memory(static_cast<std::size_t>(kFar * (k.shape[axis] - 1) + 4096) * 2);
      if (!memory.is_mapped()) return check.expect_true(false, "no address space for far strides");
      k.data = memory.data();
      k.strides[axis] = kFar;
      std::vector<double> values;
      for_each_element(near, [&](std::int64_t i) {
        values.push_back(load_as_double(DType::f16, near.data, i));
      });
      std::size_t n = 0;
      for_each_element(k, [&](std::int64_t i) { set_element(k, i, values[n++]); });
      check.expect_true(check.run(c, "far").bytes == expected.bytes,
                        format_text("k with stride {} on axis {} and {} rows", kFar, axis, rows));
    }
  }
}

// A14: more query rows than fit 16 bits, and outputs beyond 2^31 bytes of each other.
void many_rows(Check& check) {
  if (check.is_reference()) return;
  Case c = plain_case({.seqlen_q = 70000, .seqlen_k = 9, .head_dim = 4, .head_dim_v = 3});
  Result<Call> call = make_call(c);
  if (!call.ok()) return check.expect_true(false, call.failure().message);
  for (const std::string& text : judge(check.target(), c, expect(c, call.value(), false)).failures)
    check.expect_true(false, "70000 queries: " + text);
}

// A short sequence may be split more finely than the longest one.
void ragged_splits(Check& check) {
  if (check.is_reference()) return;
  const CaseName name = plain_name(DType::f32);
  const struct {
    std::vector<std::int32_t> lengths;
    std::int32_t num_splits;
  } batches[] = {{{1000, 896}, 7},
                 {{3000, 2688, 5, 640}, 7},
                 {{600, 500, 512}, 3},
                 {{16385, 16384}, 0},
                 {{20000, 16384, 700}, 0}};
  for (const auto& [lengths, num_splits] : batches) {
    for (const std::int32_t rows : {1, 9}) {
      Case c = ragged_case({.head_dim = 8, .head_dim_v = 8},
                           std::vector<std::int32_t>(lengths.size(), rows), lengths, name);
      c.mutable_options().num_splits = num_splits;
      check.judge_rows(c,
                       format_text("{} sequences, the longest of {} keys, num_splits {}, {} rows",
                                   lengths.size(), lengths[0], num_splits, rows));
    }
  }
}

// A21: outputs on inputs are refused; k and v may be one.
void aliasing(Check& check) {
  Case c = plain_case({.seqlen_q = 20, .seqlen_k = 20});
  headrace_attention_tensors tensors = c.tensors();
  tensors.out.data = tensors.q.data;
  check.expect_true(!make_call(tensors, c.options()).ok(), "out on q is accepted");
  tensors = c.tensors();
  tensors.out.data = static_cast<char*>(tensors.v.data) + 64;
  check.expect_true(!make_call(tensors, c.options()).ok(), "out across v is accepted");
  c.mutable_tensors().v = c.tensors().k;
  c.set_largest_v(4);
  check.judge_rows(c, "v is k");
}

}  // namespace

std::vector<CatalogueEntry> shape_checks() {
  return {{"A5", "NaN in memory that no element lies in", nan_around},
          {"A9", "axes of size 0", empty_axes},
          {"A10", "odd and prime lengths", odd_lengths},
          {"A11", "head dims", head_dims},
          {"A12", "layouts change no bit", layouts},
          {"A13", "workspace alignment and size", workspaces},
          {"A14", "strides beyond 2^31 elements", far_strides},
          {"A14", "more than 65535 query rows", many_rows},
          {"A14", "ragged batches with split keys", ragged_splits},
          {"A21", "outputs on inputs, k and v in one", aliasing}};
}

}  // namespace headrace::testing
