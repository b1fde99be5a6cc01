// Options of the subcommands that run a model. Where llama.cpp has the same option under another
// long name, that name works too.
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

// --model alone.
void add_model_path(CLI::App& app, std::string& path);
// --model, and with it --threads, --exact, --mmap.
void add_model_options(CLI::App& app, ModelChoice& choice);
// Loads it with a progress bar on a terminal.
Model load_model(const ModelChoice& choice);
// Its vocabulary alone.
Model load_vocabulary(const std::string& path);

struct SessionChoice {
  std::int64_t context = 0;  // 0: the model's
  std::int64_t batch = 0;
  std::string cache_type;  // empty: f16, f32 for an exact model
};

void add_session_options(CLI::App& app, SessionChoice& choice);
Session make_session(const Model& model, const SessionChoice& choice);
// Throws Error(HEADRACE_INVALID_ARGUMENT) where `num_tokens` do not fit the context: both numbers
// and the remedy. what: "prompt", "conversation".
void check_fits(const Model& model, const SessionChoice& choice, std::int64_t num_tokens,
                const std::string& what);

struct GenerationChoice {
  GenerationOptions options;
  std::int64_t max_tokens = -1;     // -1: no limit
  std::int64_t repeat_window = -1;  // -1: everything
  std::int64_t seed = 0;            // -1: random
  std::vector<std::string> logit_bias;
};

// Sampling, length and stop strings.
void add_generation_options(CLI::App& app, GenerationChoice& choice);
// Draws a random seed where that was asked for, and prints it as a note.
GenerationOptions generation_options(const GenerationChoice& choice);

}  // namespace headrace::cli
