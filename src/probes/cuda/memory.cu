// Bandwidth and latency of a GPU's memories. Loads bypass L1 unless L1 is what is measured.
#include <algorithm>

#include "backends/cuda/runtime/launch.cuh"
#include "probes/cuda/span.cuh"

namespace headrace::probes::gpu {
namespace {

using headrace::cuda::launch;
using headrace::cuda::LaunchShape;

constexpr int kThreads = 512;
constexpr int kCtasPerSm = 2;
constexpr int kUnroll = 8;  // 16-byte accesses of a thread in flight
constexpr std::size_t kLineBytes = 128;

enum class Access { read, write, copy };

// Vectors [0, num_vecs) of `data`; a copy goes from the first half to the second.
template <Access kAccess>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    stream_kernel(i64 passes, uint4* data, i64 num_vecs, u32* sink, KernelSpan* span) {
  const i64 first = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  const i64 stride = static_cast<i64>(gridDim.x) * kThreads;
  const i64 end = kAccess == Access::copy ? num_vecs / 2 : num_vecs;
  u32 sum = 0;
  const SpanTimer timer;
  for (i64 pass = 0; pass < passes; ++pass) {
    for (i64 i = first; i < end; i += kUnroll * stride) {
      uint4 x[kUnroll];
      if constexpr (kAccess != Access::write) {
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          if (i + j * stride < end) x[j] = __ldcg(data + i + j * stride);
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (i + j * stride >= end) continue;
        if constexpr (kAccess == Access::read) {
          sum += x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
        } else {
          if constexpr (kAccess == Access::write) {
            const u32 word = hash(static_cast<u32>(pass)) ^ static_cast<u32>(i);
            x[j] = make_uint4(word, word + 1, word + 2, word + 3);
          }
          __stcg(data + i + j * stride + (kAccess == Access::copy ? end : 0), x[j]);
        }
      }
    }
  }
  timer.write(span);
  keep(sum, 0x12345678u, sink);
}

template <Access kAccess>
void add_l2_stream(Bench& bench, const char* operation, void* data, std::size_t bytes) {
  auto* sink = static_cast<u32*>(bench.allocate(sizeof(u32)));
  const int num_sms = bench.device().num_units;
  const auto num_vecs = static_cast<i64>(bytes / sizeof(uint4));
  bench.add({CeilingKind::bandwidth, "L2", operation},
            static_cast<double>(num_vecs * static_cast<i64>(sizeof(uint4))), num_sms,
            static_cast<i64>(bytes), [=](i64 passes, KernelSpan* span, cudaStream_t stream) {
              return launch({.name = "the bandwidth probe",
                             .grid = dim3(static_cast<unsigned>(kCtasPerSm * num_sms)),
                             .block = dim3(kThreads)},
                            stream, stream_kernel<kAccess>, passes, static_cast<uint4*>(data),
                            num_vecs, sink, span);
            });
}

// The same with a vector for each thread and CTAs of 4 KiB in the order of addresses, once in every
// row of the grid: an H200 writes 4.65 TB/s so and copies 4.24, with resident CTAs 4.32 and 3.93.
// In an L2 the launches of the CTAs would count.
constexpr int kTileThreads = 256;
constexpr u64 kClockNanoseconds = 50000;

template <Access kAccess>
__global__ void __launch_bounds__(kTileThreads)
    tile_kernel(uint4* data, i64 num_vecs, u32* sink, KernelSpan* span) {
  const SpanTimer timer;
  const i64 i = static_cast<i64>(blockIdx.x) * kTileThreads + threadIdx.x;
  const i64 end = kAccess == Access::copy ? num_vecs / 2 : num_vecs;
  if (i < end) {
    uint4 x;
    if constexpr (kAccess == Access::write) {
      const u32 word = hash(blockIdx.y) ^ static_cast<u32>(i);
      x = make_uint4(word, word + 1, word + 2, word + 3);
    } else {
      x = __ldcg(data + i);
    }
    if constexpr (kAccess == Access::read)
      keep(x.x ^ x.y ^ x.z ^ x.w, 0x12345678u, sink);
    else
      __stcg(data + i + (kAccess == Access::copy ? end : 0), x);
  }
  // A CTA is too short for its clock: one thread waits.
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    for (const u64 start = globaltimer(); globaltimer() - start < kClockNanoseconds;) {
    }
    timer.write(span);
  }
}

template <Access kAccess>
void add_tiles(Bench& bench, const char* operation, void* data, std::size_t bytes) {
  auto* sink = static_cast<u32*>(bench.allocate(sizeof(u32)));
  const auto num_vecs = static_cast<i64>(bytes / sizeof(uint4));
  const i64 threads = kAccess == Access::copy ? num_vecs / 2 : num_vecs;
  const auto num_tiles = static_cast<unsigned>((threads + kTileThreads - 1) / kTileThreads);
  bench.add({CeilingKind::bandwidth, "DRAM", operation},
            static_cast<double>(num_vecs * static_cast<i64>(sizeof(uint4))),
            bench.device().num_units, static_cast<i64>(bytes),
            [=](i64 passes, KernelSpan* span, cudaStream_t stream) {
              return launch({.name = "the bandwidth probe",
                             .grid = dim3(num_tiles, static_cast<unsigned>(passes)),
                             .block = dim3(kTileThreads)},
                            stream, tile_kernel<kAccess>, static_cast<uint4*>(data), num_vecs, sink,
                            span);
            });
}

// ---- latency: one thread follows a cycle of pointers, one a line, far apart

__global__ void link_kernel(u64* lines, i64 num_lines, i64 stride) {
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < num_lines;
       i += static_cast<i64>(gridDim.x) * blockDim.x) {
    const i64 next = (i + stride) % num_lines;
    lines[i * static_cast<i64>(kLineBytes / sizeof(u64))] =
        reinterpret_cast<u64>(lines + next * static_cast<i64>(kLineBytes / sizeof(u64)));
  }
}

// `kIsL1`: loads may hit L1. *at is the line where the last call ended.
template <bool kIsL1>
__global__ void chase_kernel(i64 loads, u64* at, KernelSpan* span) {
  constexpr i64 kLoads = 1024;
  u64 address = *at;
  const SpanTimer timer;
  for (i64 round = 0; round < loads; ++round) {
#pragma unroll 16
    for (i64 i = 0; i < kLoads; ++i) {
      if constexpr (kIsL1)
        asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(address)::"memory");
      else
        asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(address)::"memory");
    }
  }
  timer.write(span);
  *at = address;
}
constexpr double kChaseLoads = 1024;

template <bool kIsL1>
void add_latency(Bench& bench, const char* resource, void* data, std::size_t bytes) {
  if (bench.status()) return;
  const auto num_lines = static_cast<i64>(bytes / kLineBytes) - 1;  // the last holds `at`
  // Near the golden section of the lines, and without a common factor with their number.
  i64 stride = std::max<i64>(num_lines * 618 / 1000, 1);
  while (std::__gcd(stride, num_lines) != 1) ++stride;
  auto* lines = static_cast<u64*>(data);
  u64* at = lines + num_lines * static_cast<i64>(kLineBytes / sizeof(u64));
  const auto enqueue = [=](i64 loads, KernelSpan* span, cudaStream_t stream) {
    return launch({.name = "the latency probe", .grid = dim3(1), .block = dim3(1)}, stream,
                  chase_kernel<kIsL1>, loads, at, span);
  };
  const auto link = [=](i64, KernelSpan*, cudaStream_t stream) -> Status {
    HEADRACE_TRY(launch({.name = "the linking of lines", .grid = dim3(1024), .block = dim3(256)},
                        stream, link_kernel, lines, num_lines, stride));
    const u64 first = reinterpret_cast<u64>(lines);
    return headrace::cuda::cuda_status(
        cudaMemcpyAsync(at, &first, sizeof first, cudaMemcpyHostToDevice, stream),
        "writing the first line");
  };
  bench.run(link);
  bench.add({CeilingKind::latency, resource, "load"}, kChaseLoads, 1, static_cast<i64>(bytes),
            enqueue);
}

// ---- shared memory

constexpr int kSharedThreads = 1024;
constexpr int kSharedWords = 8192;
constexpr int kSharedLoads = 32;

// Lanes read words `stride` apart: gcd(stride, 32) lanes share a bank.
__global__ void __launch_bounds__(kSharedThreads)
    shared_kernel(i64 steps, u32 stride, u32* sink, KernelSpan* span) {
  __shared__ u32 words[kSharedWords];
  for (u32 i = threadIdx.x; i < kSharedWords; i += kSharedThreads) words[i] = hash(i);
  __syncthreads();
  const u32 address = headrace::cuda::smem_address(words + threadIdx.x % 32 * stride);
  u32 sum = 0;
  const SpanTimer timer;
  for (i64 step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kSharedLoads; ++i) {
      u32 word;
      // ld.volatile: ptxas would load once for several steps.
      asm volatile("ld.volatile.shared.u32 %0, [%1];"
                   : "=r"(word)
                   : "r"(address + 512 * i)
                   : "memory");
      sum ^= word;
    }
  }
  timer.write(span);
  keep(sum, 0x12345678u, sink);
}

__global__ void shared_chase_kernel(i64 rounds, u32* sink, KernelSpan* span) {
  constexpr u32 kWords = 1024;
  __shared__ u32 words[kWords];
  for (u32 i = 0; i < kWords; ++i)
    words[i] = headrace::cuda::smem_address(words + (i + 37) % kWords);
  u32 address = headrace::cuda::smem_address(words);
  const SpanTimer timer;
  for (i64 round = 0; round < rounds; ++round) {
#pragma unroll 16
    for (int i = 0; i < static_cast<int>(kChaseLoads); ++i)
      asm volatile("ld.shared.u32 %0, [%0];" : "+r"(address)::"memory");
  }
  timer.write(span);
  keep(address, 0u, sink);
}

}  // namespace

void add_memory(Bench& bench) {
  const auto l2_bytes = static_cast<std::size_t>(std::max<i64>(bench.device().l2_bytes, 1 << 20));
  const std::size_t bytes = std::max<std::size_t>(std::size_t{1} << 30, 8 * l2_bytes);
  void* data = bench.allocate(bytes);
  // A quarter: L2 caches have two halves, and a line may lie in both.
  const std::size_t l2_part = l2_bytes / 4 / kLineBytes * kLineBytes;
  add_l2_stream<Access::read>(bench, "read", data, l2_part);
  add_l2_stream<Access::write>(bench, "write", data, l2_part);
  add_l2_stream<Access::copy>(bench, "copy", data, l2_part);
  add_tiles<Access::read>(bench, "read", data, bytes);
  add_tiles<Access::write>(bench, "write", data, bytes);
  add_tiles<Access::copy>(bench, "copy", data, bytes);
  add_latency<true>(bench, "L1", data, 16 * 1024);
  add_latency<false>(bench, "L2", data, l2_part);
  add_latency<false>(bench, "DRAM", data, std::min(bytes, 8 * l2_bytes));
}

void add_shared_memory(Bench& bench) {
  auto* sink = static_cast<u32*>(bench.allocate(sizeof(u32)));
  const int num_sms = bench.device().num_units;
  for (const u32 ways : {1u, 2u, 4u, 8u, 16u, 32u}) {
    const std::string operation =
        ways == 1 ? "read" : "read, " + std::to_string(ways) + "-way conflict";
    bench.add({CeilingKind::bandwidth, "shared", operation},
              4. * kSharedThreads * kSharedLoads * num_sms, num_sms, kSharedWords * 4,
              [=](i64 steps, KernelSpan* span, cudaStream_t stream) {
                return launch({.name = "the shared memory probe",
                               .grid = dim3(static_cast<unsigned>(num_sms)),
                               .block = dim3(kSharedThreads)},
                              stream, shared_kernel, steps, ways, sink, span);
              });
  }
  bench.add({CeilingKind::latency, "shared", "load"}, kChaseLoads, 1, 4096,
            [=](i64 rounds, KernelSpan* span, cudaStream_t stream) {
              return launch({.name = "the shared latency probe", .grid = dim3(1), .block = dim3(1)},
                            stream, shared_chase_kernel, rounds, sink, span);
            });
}

}  // namespace headrace::probes::gpu
