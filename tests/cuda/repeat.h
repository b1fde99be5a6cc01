// Repeats a call in every way that a program may. A call has poison(stream) of its outputs,
// run(stream), which poisons them first, result(stream), which synchronizes and returns their
// bytes, and tune(options).
#pragma once

#include <cstring>
#include <headrace/headrace.hpp>
#include <headrace/tuning.hpp>

#include "cuda/gpu.h"

namespace headrace::testing {

inline std::size_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// Random values of either sign with a magnitude between 0.5 and 1, as bytes.
inline std::vector<unsigned char> numbers(DType dtype, std::int64_t count, unsigned seed) {
  const std::size_t size = bytes_of(dtype);
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * size);
  for (std::size_t i = 0; i < bytes.size(); i += size) {
    seed = seed * 1664525u + 1013904223u;
    const std::uint32_t sign = seed >> 31, fraction = seed >> 5 & 0x7FFFFFu;
    const std::uint32_t bits = dtype == DType::f32    ? sign << 31 | 0x3F000000u | fraction
                               : dtype == DType::bf16 ? sign << 15 | 0x3F00u | fraction >> 16
                                                      : sign << 15 | 0x3800u | fraction >> 13;
    std::memcpy(&bytes[i], &bits, size);
  }
  return bytes;
}

template <class Call>
void expect_same_bits(Call& call, int num_runs) {
  call.run(nullptr);
  const std::vector<unsigned char> first = call.result(nullptr);
  for (int i = 1; i < num_runs; ++i) {
    call.run(nullptr);
    ASSERT_EQ(call.result(nullptr), first) << "run " << i;
  }
}

template <class Call>
void expect_graph_replays(Call& call) {
  cudaStream_t stream = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  call.run(stream);
  const std::vector<unsigned char> eager = call.result(stream);
  // With one call in the graph, the workspace holds what the same call left there.
  for (const int num_calls : {1, 3}) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    HEADRACE_EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < num_calls; ++i) call.run(stream);
    HEADRACE_EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
    HEADRACE_EXPECT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < 20; ++i) {
      HEADRACE_EXPECT_CUDA(cudaGraphLaunch(replay, stream));
      ASSERT_EQ(call.result(stream), eager) << "replay " << i << " of " << num_calls << " calls";
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

// Two equal calls.
template <class Call>
void expect_streams_apart(Call& one, Call& other) {
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams)
    HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  one.run(streams[0]);
  const std::vector<unsigned char> alone = one.result(streams[0]);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 5; ++i) {
      one.run(streams[0]);
      other.run(streams[1]);
    }
    ASSERT_EQ(one.result(streams[0]), alone) << "round " << round;
    ASSERT_EQ(other.result(streams[1]), alone) << "round " << round;
  }
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
}

// Every choice that the kernel offers writes the same bits.
template <class Call>
void expect_tuning_keeps_bits(Call& call) {
  call.run(nullptr);
  const auto own = call.result(nullptr);
  int num_calls = 0;
  const TunedCall tuned =
      call.tune({.num_rounds = 1, .round_seconds = 0, .before_call = [&](void* stream) {
                   EXPECT_EQ(call.result(nullptr), own) << num_calls;
                   call.poison(static_cast<cudaStream_t>(stream));
                   ++num_calls;
                 }});
  EXPECT_EQ(call.result(nullptr), own) << "the last call";
  EXPECT_GE(num_calls, tuned.num_timed);
  EXPECT_GT(tuned.seconds, 0);
  EXPECT_GE(tuned.own_seconds, tuned.seconds);
}

}  // namespace headrace::testing
