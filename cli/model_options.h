// Options of the subcommands that run a model.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/model.hpp"

namespace headrace::cli {

struct ModelChoice {
  std::string path;
  int num_threads = 0;  // 0: all that this process may use
  bool is_exact = false;
  bool uses_mmap = false;
};

// --model, and with it --threads, --exact, --mmap.
void add_model_options(CLI::App& app, ModelChoice& choice);
// Loads it with a progress bar on a terminal.
Model load_model(const ModelChoice& choice);

struct SessionChoice {
  std::int64_t context = 0;  // 0: the model's
  std::int64_t batch = 0;
  std::string cache_type;  // empty: f16, f32 for an exact model
};

void add_session_options(CLI::App& app, SessionChoice& choice);
Session make_session(const Model& model, const SessionChoice& choice);

struct GenerationChoice {
  GenerationOptions options;
  std::vector<std::string> logit_bias;  // "TOKEN=BIAS"
};

// Sampling, length and stop strings.
void add_generation_options(CLI::App& app, GenerationChoice& choice);
GenerationOptions generation_options(const GenerationChoice& choice);

}  // namespace headrace::cli
