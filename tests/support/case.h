// A test case: axis values and a seed determine shapes; tensors are in guarded memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "support/axes.h"
#include "support/guarded_buffer.h"

namespace headrace::testing {

// The sizes of a case, a pure function of its name.
struct Shape {
  DType dtype = DType::f32;
  std::int64_t batch = 1, seqlen_q = 1, seqlen_k = 1;  // ragged: the longest
  std::int64_t num_heads = 1, num_kv_heads = 1, head_dim = 1, head_dim_v = 1;
  bool is_ragged = false;
  std::vector<std::int32_t> lengths_q, lengths_k;  // ragged: one per sequence
  std::int64_t total_q = 0, total_k = 0;           // ragged
};
Shape shape_of(const CaseName& name);

// Where the keys of a case lie. `used`: seqused_k gives each sequence fewer keys than there are.
enum class KeyStorage { whole, pages, used, used_pages };
inline constexpr const char* kKeyStorages[] = {"whole", "pages", "used", "used_pages"};

// A guarded allocation and a view of it.
struct TestTensor {
  GuardedBuffer memory;
  TensorView view;
};

class Case {
 public:
  explicit Case(const CaseName& name);
  Case(const CaseName& name, const Shape& shape);

  const CaseName& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  const headrace_attention_tensors& tensors() const { return tensors_; }
  const headrace_attention_options& options() const { return options_; }
  const headrace_attention_gradients& gradients() const { return gradients_; }
  headrace_attention_tensors& mutable_tensors() { return tensors_; }
  headrace_attention_options& mutable_options() { return options_; }
  double largest_v() const { return largest_v_; }  // max |v|
  void set_largest_v(double value) { largest_v_ = value; }
  // Standard deviation of dout; 1 unless set before make_gradients().
  void set_dout_scale(double value) { dout_scale_ = value; }

  // Moves the keys; what no sequence sees becomes NaN.
  void store_keys(KeyStorage storage);

  // Turns the case into its backward: out and lse become inputs with the reference's rounded
  // results, dout (and dlse, if the axis lse has it) are added, and the outputs are all gradients
  // that the case can have.
  void make_gradients();

  // Fills all memory of the outputs with the sentinel.
  void reset_outputs();
  // Checks the memory around the outputs after a run; empty: untouched. Call after take_written()
  // on each output.
  std::string check_gaps() const;
  // Inputs are in read-only pages; call this before changing one.
  void unlock_inputs();
  void lock_inputs();

 private:
  void make_operands(Random& random);
  void make_separate(Random& random);
  void make_packed(Random& random);
  void make_outputs();
  void make_lengths_tensors();
  void make_extras(Random& random);
  void set_options(Random& random);
  void fill_operands(Random& random);
  void fill_winner(Random& random, double strength);
  headrace_tensor add_view(DType dtype, const std::vector<std::int64_t>& shape,
                           const std::vector<std::int64_t>& strides, bool is_output);
  headrace_tensor add_contiguous(DType dtype, const std::vector<std::int64_t>& shape,
                                 bool is_output = false);
  headrace_tensor add_score_operand(DType dtype, int broadcast_axis);
  void use_fewer_keys(const std::vector<std::int32_t>& lengths);
  void run_reference();
  void add_dout(Random& random);

  CaseName name_;
  Shape shape_;
  Guard guard_;
  headrace_attention_tensors tensors_{};
  headrace_attention_gradients gradients_{};
  headrace_attention_options options_{};
  std::vector<GuardedBuffer> inputs_, outputs_;
  double largest_v_ = 0, dout_scale_ = 1;
};

}  // namespace headrace::testing
