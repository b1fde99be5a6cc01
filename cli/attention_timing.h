// Times attention calls on random inputs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "attention_data.h"
#include "attention_shape.h"
#include "gpu.h"
#include "headrace/headrace.hpp"
#include "headrace/tuning.hpp"
#include "probes/probes.h"
#include "times.h"

namespace headrace::cli {

// The device that runs the calls, with the cache evictor for cold calls.
struct Machine {
  DeviceInfo device;
  std::optional<Gpu> gpu;
  std::unique_ptr<probes::StreamBuffer> evictor;
};

// `device`: "cpu", "cuda" or "cuda:NUMBER". `num_threads`: of a CPU; 0: all that the library finds.
Machine machine_of(const std::string& device, int num_threads, bool is_cold);

// For Option::check(): why the text is no device of a machine; "" if it is one.
std::string check_machine(const std::string& text);

struct TimingOptions {
  Layout layout = Layout::bshd;
  int reps = 5;
  double min_time = 0.2;  // seconds
  bool is_cold = false;   // evict the caches before each call; the machine was made so
};

struct TimedCalls {
  Times times;
  double read_gbytes;  // cold: median of the evicting reads, one before each call; else 0
};

// Times at least `reps` calls, for at least `min_time` seconds (evictions included).
TimedCalls time_attention(const AttentionShape& shape, const Plan& plan,
                          const TimingOptions& options, Machine& machine);

// Tunes the call of `plan` on random inputs. TuneOptions::before_call is set here.
TunedCall tune_attention(const AttentionShape& shape, const Plan& plan, bool is_cold,
                         TuneOptions options, Machine& machine, Tuning& tuning);

}  // namespace headrace::cli
