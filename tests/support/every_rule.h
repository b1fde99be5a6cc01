// The rules that every tensor of a call has, whatever it means: a rank, a dtype, a device, sizes
// that agree with the other tensors, often neighbouring elements in the last axis, and for outputs
// memory of their own. Each rule is broken alone, so that a rule that is not checked is found for
// every argument, also for those of which no other test has a wrong one.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "core/dtype.h"
#include "headrace/tensor.hpp"

namespace headrace::testing {

struct Role {
  std::string name;
  headrace_tensor* tensor;
  bool is_inner = false;   // elements of its last axis are neighbours
  bool is_output = false;  // its memory is its own
  bool leads = false;      // others are compared with it: an error may name those
  int free_axis = -1;      // of any size
};

// make() makes a call that has `roles()`, `run()`, which returns a Status, and `results()`, what a
// run would write.
template <class Make>
void expect_every_rule(Make make) {
  const auto good = make();
  ASSERT_FALSE(good->run()) << good->run()->message;
  const std::size_t count = good->roles().size();
  for (std::size_t i = 0; i < count; ++i) {
    const Role like = good->roles()[i];
    const int last = like.tensor->rank - 1;
    // `start`: of the message, behind the name.
    const auto refuse = [&](const std::string& start, const auto& change) {
      const auto call = make();
      std::vector<Role> roles = call->roles();
      const auto before = call->results();
      change(*roles[i].tensor, roles);
      const Status bad = call->run();
      ASSERT_TRUE(bad) << like.name << start << " is accepted";
      EXPECT_EQ(bad->code, ErrorCode::invalid_argument) << bad->message;
      const std::size_t at = like.leads ? 0 : bad->message.find(like.name);
      EXPECT_EQ(at, 0u) << bad->message << "\nbegins not with " << like.name << start;
      EXPECT_EQ(call->results(), before) << like.name << start << ": something was written";
    };
    if (like.is_inner) {
      const auto call = make();
      call->roles()[i].tensor->strides[last] = 2;
      const Status bad = call->run();
      const std::string start = like.name + ".strides[" + std::to_string(last) + "]=2";
      ASSERT_TRUE(bad) << start << " is accepted";
      EXPECT_EQ(bad->message.find(start), 0u) << bad->message << "\nbegins not with " << start;
    }
    for (const int step : {-1, 1})
      refuse(".rank", [&](headrace_tensor& x, auto&) { x.rank += step; });
    const std::int32_t wrong = like.tensor->dtype == HEADRACE_I64 ? HEADRACE_BOOL : HEADRACE_I64;
    refuse(".dtype", [&](headrace_tensor& x, auto&) { x.dtype = wrong; });
    refuse(".device_type", [&](headrace_tensor& x, auto&) { x.device_type = HEADRACE_CUDA; });
    refuse(".device_type", [&](headrace_tensor& x, auto&) { x.device_type = 99; });
    refuse(".data", [&](headrace_tensor& x, auto&) { x.data = nullptr; });
    for (int axis = 0; axis <= last; ++axis) {
      const auto size = ".shape[" + std::to_string(axis) + "]";
      refuse(size, [&](headrace_tensor& x, auto&) { x.shape[axis] = -1; });
      if (axis == like.free_axis) continue;
      const auto call = make();
      std::vector<Role> roles = call->roles();
      roles[i].tensor->shape[axis] += 7;
      // Of two sizes that differ, either may be blamed.
      EXPECT_TRUE(call->run()) << like.name << size << " may differ from the others";
    }
    if (!like.is_output) continue;
    for (std::size_t j = 0; j < count; ++j) {
      if (j == i) continue;
      const auto call = make();
      std::vector<Role> roles = call->roles();
      // An element further: the same view may be allowed.
      roles[i].tensor->data = static_cast<char*>(roles[j].tensor->data) +
                              dtype_bytes(static_cast<DType>(like.tensor->dtype));
      EXPECT_TRUE(call->run()) << like.name << " may overlap " << roles[j].name;
    }
  }
}

}  // namespace headrace::testing
