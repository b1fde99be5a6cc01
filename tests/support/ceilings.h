// Ceilings of a made-up machine under the name of this one, so that tests of reports measure none.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "ceilings_cache.h"
#include "files.h"
#include "tests/support/temporary_folder.h"

namespace headrace::cli {

// 100 GB/s and 1 TFLOP/s in f32, 2 in bf16.
inline MeasuredCeilings round_ceilings() {
  const auto units = static_cast<std::int32_t>(cpu_info().num_units);
  const auto ceiling = [&](CeilingKind kind, const char* resource, const char* operation,
                           double value) {
    return Ceiling{.kind = kind,
                   .num_units = units,
                   .resource = resource,
                   .operation = operation,
                   .value = value,
                   .best = value,
                   .clock_hz = 2e9,
                   .watts = 0,
                   .bytes = kind == CeilingKind::compute ? 0 : 1 << 20};
  };
  return {"2026-01-31T12:00:00Z",
          {ceiling(CeilingKind::compute, "avx2", "f32", 1e12),
           ceiling(CeilingKind::compute, "avx512_bf16", "bf16", 2e12),
           ceiling(CeilingKind::bandwidth, "L1", "read", 5e12),
           ceiling(CeilingKind::bandwidth, "L1", "write", 2e12),
           ceiling(CeilingKind::bandwidth, "DRAM", "read", 1e11),
           ceiling(CeilingKind::latency, "DRAM", "load", 1e-7)}};
}

// A cache folder of this process alone, XDG_CACHE_HOME; holds round_ceilings() of the CPU.
inline const testing::TemporaryFolder& ceilings_folder() {
  static const testing::TemporaryFolder folder;
  static const bool is_filled = [] {
    setenv("XDG_CACHE_HOME", folder.file("").c_str(), 1);
    const CeilingsKey key = ceilings_key(cpu_info());
    replace_file(ceilings_path(key), ceilings_text(key, round_ceilings()));
    return true;
  }();
  static_cast<void>(is_filled);
  return folder;
}

}  // namespace headrace::cli
