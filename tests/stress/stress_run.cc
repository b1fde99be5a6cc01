#include "stress/stress_run.h"

#include <array>
#include <chrono>
#include <optional>

#include "backends/cuda/backend.h"
#include "stress/product_call.h"

namespace headrace::testing {
namespace {

constexpr std::size_t kLoadBytes = std::size_t{192} << 20;  // more than three times the L2 cache

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// Limit of a mode: time or number of calls.
struct StressRunner::Budget {
  int num_calls;  // 0: limited by time
  double end;

  bool has_more(int done) const { return num_calls > 0 ? done < num_calls : seconds_now() < end; }
};

StressRunner::StressRunner(const DeviceInfo& device)
    : device_(device),
      differences_(allocate(kDifferences * sizeof(Difference))),
      load_memory_(allocate(kLoadBytes)) {
  for (cudaStream_t* stream : {&streams_[0], &streams_[1], &load_stream_})
    require(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "creating a stream");
}
StressRunner::~StressRunner() {
  for (cudaStream_t stream : {streams_[0], streams_[1], load_stream_}) cudaStreamDestroy(stream);
}

CaseResult StressRunner::run(const StressCase& c, double seconds) {
  CaseResult result;
  const Kernel* kernel = find_kernel(c.cell);
  if (kernel == nullptr) {
    result.failure = "no such kernel";
    return result;
  }
  const Inputs inputs(c, c.cell.dtype);
  StressCall call(c, inputs, *kernel, device_);
  if (result.refusal = call.refusal(); !result.refusal.empty()) return result;
  {
    const Inputs exact_inputs(c, DType::f64);
    const Kernel& last =
        (c.cell.is_backward ? cuda::backward_kernels() : cuda::forward_kernels()).back();
    const StressCall exact(c, exact_inputs, last, device_);
    result.failure = call.compare_with(exact);
    result.num_wrong += result.failure.empty() ? 0 : 1;
  }
  StressCall other(c, inputs, *kernel, device_);
  repeat(call, other, c.num_calls, seconds, result);
  return result;
}

CaseResult StressRunner::run(const ProductCase& c, double seconds) {
  CaseResult result;
  ProductCall call(c, device_), other(c, device_);
  result.failure = call.compare_with_definition();
  result.num_wrong += result.failure.empty() ? 0 : 1;
  repeat(call, other, 0, seconds, result);
  return result;
}

CaseResult StressRunner::run(const SparqStressCase& c, double seconds) {
  CaseResult result;
  SparqStressCall call(c), other(c);
  repeat(call, other, 0, seconds, result);
  return result;
}

void StressRunner::repeat(RepeatedCall& call, RepeatedCall& other, int num_calls, double seconds,
                          CaseResult& result) {
  const double share = seconds / 4;
  const auto budget = [&] { return Budget{num_calls, seconds_now() + share}; };
  run_in_stream(call, budget(), false, result);
  run_in_graph(call, budget(), result);
  run_in_streams(call, other, budget(), result);
  run_in_stream(call, budget(), true, result);
  require(cuda::check(device_.device_id, nullptr), "checking the lengths");
}

void StressRunner::run_in_stream(RepeatedCall& call, const Budget& budget, bool has_load,
                                 CaseResult& result) {
  for (int done = 0; budget.has_more(done); done += kCallsAtOnce) {
    clear();
    for (int i = 0; i < kCallsAtOnce; ++i) {
      if (has_load && i % 2 == 0) make_load(load_memory_.get(), kLoadBytes, load_stream_);
      call.run(streams_[0]);
      call.compare(differences_of(i), i % 4 == 0, streams_[0]);
    }
    collect(call, has_load ? "next to a load kernel" : "in a stream", result);
  }
}

void StressRunner::run_in_graph(RepeatedCall& call, const Budget& budget, CaseResult& result) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  require(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), "capturing");
  for (int i = 0; i < kCallsAtOnce; ++i) {
    call.run(streams_[0]);
    call.compare(differences_of(i), i % 4 == 0, streams_[0]);
  }
  require(cudaStreamEndCapture(streams_[0], &graph), "capturing");
  require(cudaGraphInstantiate(&replay, graph, 0), "instantiating a graph");
  for (int done = 0; budget.has_more(done); done += kCallsAtOnce) {
    clear();
    require(cudaGraphLaunch(replay, streams_[0]), "launching a graph");
    collect(call, "in a graph", result);
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

void StressRunner::run_in_streams(RepeatedCall& one, RepeatedCall& other, const Budget& budget,
                                  CaseResult& result) {
  for (int done = 0; budget.has_more(done); done += kCallsAtOnce) {
    clear();
    for (int i = 0; i < kCallsAtOnce; ++i) {
      RepeatedCall& call = i % 2 == 0 ? one : other;
      call.run(streams_[i % 2]);
      call.compare(differences_of(i), i % 8 < 2, streams_[i % 2]);
    }
    collect(one, "in two streams", result);
  }
}

void StressRunner::clear() {
  // first: initialized for a minimum.
  std::array<Difference, kDifferences> none;
  none.fill({0, ~0ull});
  require(cudaMemcpy(differences_.get(), none.data(), sizeof none, cudaMemcpyHostToDevice),
          "cudaMemcpy");
}

Difference* StressRunner::differences_of(int i) const {
  return static_cast<Difference*>(differences_.get()) + i * RepeatedCall::kMostOutputs;
}

void StressRunner::collect(const RepeatedCall& call, const char* way, CaseResult& result) {
  std::array<Difference, kDifferences> found;
  require(cudaDeviceSynchronize(), way);
  require(cudaMemcpy(found.data(), differences_.get(), sizeof found, cudaMemcpyDeviceToHost),
          "cudaMemcpy");
  for (int i = 0; i < kCallsAtOnce; ++i) {
    ++result.num_calls;
    const std::string text =
        call.describe(&found[static_cast<std::size_t>(i) * RepeatedCall::kMostOutputs]);
    if (text.empty()) continue;
    ++result.num_wrong;
    if (result.failure.empty()) result.failure = format_text("{}: {}", way, text);
  }
}

}  // namespace headrace::testing
