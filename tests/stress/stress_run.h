// Repeats a case in every way that a program may run it.
#pragma once

#include "stress/product_case.h"
#include "stress/sparq_call.h"
#include "stress/stress_call.h"

namespace headrace::testing {

struct CaseResult {
  std::int64_t num_calls = 0, num_wrong = 0;
  std::string refusal;  // the kernel refused: nothing ran
  std::string failure;  // first failure
};

// Four modes share the time, or each runs the case's number of calls: in one stream; in a CUDA
// graph; in two streams at once; next to a kernel that loads L2 and other multiprocessors.
class StressRunner {
 public:
  explicit StressRunner(const DeviceInfo& device);
  ~StressRunner();
  StressRunner(const StressRunner&) = delete;

  CaseResult run(const StressCase& c, double seconds);
  CaseResult run(const ProductCase& c, double seconds);
  CaseResult run(const SparqStressCase& c, double seconds);

 private:
  static constexpr int kCallsAtOnce = 32;  // enqueued before a synchronization
  static constexpr int kDifferences = kCallsAtOnce * RepeatedCall::kMostOutputs;

  struct Budget;
  // num_calls of each mode; 0: `seconds` of all.
  void repeat(RepeatedCall& call, RepeatedCall& other, int num_calls, double seconds,
              CaseResult& result);
  void run_in_stream(RepeatedCall& call, const Budget& budget, bool has_load, CaseResult& result);
  void run_in_graph(RepeatedCall& call, const Budget& budget, CaseResult& result);
  void run_in_streams(RepeatedCall& one, RepeatedCall& other, const Budget& budget,
                      CaseResult& result);
  void clear();
  // The differences of call i since clear().
  Difference* differences_of(int i) const;
  void collect(const RepeatedCall& call, const char* way, CaseResult& result);

  DeviceInfo device_;
  cudaStream_t streams_[2] = {}, load_stream_ = nullptr;
  DeviceMemory differences_, load_memory_;
};

}  // namespace headrace::testing
