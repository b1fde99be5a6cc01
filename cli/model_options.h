// Options of the subcommands that run a model. llama.cpp's long names are accepted as aliases.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/model.hpp"

namespace headrace::cli {

struct ModelChoice {
  std::string path;                        // of a file; of random weights: a name or a config.json
  std::optional<RandomModel> random = {};  // the shape is that of `path`
  int num_threads = 0;                     // 0: all that the process may use
  bool is_exact = false;
  bool is_fast = false;
  bool uses_mmap = false;
  std::string device = "cpu";  // or "cuda", "cuda:N"
};

// Only --model.
void add_model_path(CLI::App& app, std::string& path);
// --model or --random, with --type and --seed.
void add_model_or_random(CLI::App& app, std::string& path, std::string& like, RandomModel& random);
void add_device_option(CLI::App& app, std::string& device);
CLI::Option* add_fast_flag(CLI::App& app, bool& is_fast);
// "cpu", or "cuda:1 (NVIDIA H200)".
std::string device_note(const std::string& device);
// --model, --device, --threads, --exact, --mmap.
void add_model_options(CLI::App& app, ModelChoice& choice);
// Shows a progress bar on a terminal.
Model load_model(const ModelChoice& choice);
// Loads only the vocabulary.
Model load_vocabulary(const std::string& path);

struct SessionChoice {
  std::int64_t context = 0;  // 0: the model's maximum
  std::int64_t batch = 0;
  std::int64_t page_size = SessionOptions().page_size;
  std::int64_t num_pages = 0;                         // not an option; 0: those of one sequence
  std::string cache_type;                             // empty: f16, or f32 for an exact model
  std::string k_type, v_type;                         // of codes; empty: as cache_type
  std::int64_t sparq_components = 0, sparq_keys = 0;  // both 0: dense attention
};

// Of a --cache-type that the parser accepted.
DType dtype_of_cache(const std::string& cache_type);
// What they and other options of stored keys and values take: "int8", ...
const std::vector<std::string>& stored_types();
// --kv-type, --k-type, --v-type.
void add_stored_types(CLI::App& app, std::string& k_type, std::string& v_type,
                      const std::string& group);
// Of a type that the parser accepted; empty: none.
std::optional<DType> stored_dtype(const std::string& type);
void add_session_options(CLI::App& app, SessionChoice& choice);
// --sparq-r, --sparq-k: of commands that decode with a session.
void add_sparq_options(CLI::App& app, SessionChoice& choice);
Session make_session(const Model& model, const SessionChoice& choice);
EngineOptions engine_options(const Model& model, const SessionChoice& choice);
// With pages for several completions of a prompt, and no longer than they can be. max_new_tokens 0:
// no limit.
SessionChoice with_completions(const Model& model, const SessionChoice& choice,
                               std::int64_t num_completions, std::int64_t num_prompt_tokens,
                               std::int64_t max_new_tokens);
// Throws Error(HEADRACE_INVALID_ARGUMENT) if `num_tokens` exceed the context. what: "prompt",
// "conversation".
void check_fits(const Model& model, const SessionChoice& choice, std::int64_t num_tokens,
                const std::string& what);

struct GenerationChoice {
  GenerationOptions options;
  std::int64_t max_tokens = -1;     // -1: no limit
  std::int64_t repeat_window = -1;  // -1: all
  std::int64_t seed = 0;            // -1: random
  std::vector<std::string> logit_bias;
};

// 32 bits: short enough to type. Not std::random_device, with which a wheel needs a newer glibc.
std::uint32_t random_seed();
// Temperature and filters.
void add_filter_options(CLI::App& app, SamplingOptions& sampling);
// Sampling, length and stop strings.
void add_generation_options(CLI::App& app, GenerationChoice& choice);
// For seed -1, draws a seed and prints it as a note.
GenerationOptions generation_options(const GenerationChoice& choice);

}  // namespace headrace::cli
