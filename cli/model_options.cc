#include "model_options.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>

#include "progress.h"

namespace headrace::cli {
namespace {

const std::map<std::string, headrace_sampling_order> kOrders = {
    {"vllm", HEADRACE_ORDER_VLLM},
    {"transformers", HEADRACE_ORDER_TRANSFORMERS},
    {"llama.cpp", HEADRACE_ORDER_LLAMA_CPP}};

std::string mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20); }

headrace_logit_bias parse_bias(const std::string& text) {
  const std::size_t equals = text.find('=');
  const auto is_number = [](const std::string& part, char* end) {
    return !part.empty() && *end == '\0';
  };
  if (equals != std::string::npos) {
    const std::string token = text.substr(0, equals), bias = text.substr(equals + 1);
    char *token_end = nullptr, *bias_end = nullptr;
    const long id = std::strtol(token.c_str(), &token_end, 10);
    const float value = std::strtof(bias.c_str(), &bias_end);
    if (is_number(token, token_end) && is_number(bias, bias_end) && id >= 0 && id <= INT32_MAX)
      return {static_cast<std::int32_t>(id), value};
  }
  throw Error(HEADRACE_INVALID_ARGUMENT,
              "--logit-bias " + text + ": expected TOKEN=BIAS, for example 42=-1.5");
}

}  // namespace

void add_model_options(CLI::App& app, ModelChoice& choice) {
  constexpr const char* kGroup = "Model";
  app.add_option("-m,--model", choice.path, "model file (GGUF)")
      ->required()
      ->option_text("FILE REQUIRED")
      ->group(kGroup);
  app.add_option("-t,--threads", choice.num_threads, "threads (default: all allowed)")
      ->check(CLI::Range(1, 1024))
      ->option_text("N")
      ->group(kGroup);
  app.add_flag("--exact", choice.is_exact,
               "weights as floats, products of floats: slower, 4 bytes a weight")
      ->group(kGroup);
  app.add_flag("--mmap", choice.uses_mmap, "read the file through a mapping")->group(kGroup);
}

Model load_model(const ModelChoice& choice) {
  const auto progress = std::make_shared<Progress>("loading");
  Model model(choice.path, {.num_threads = choice.num_threads,
                            .exact = choice.is_exact,
                            .use_mmap = choice.uses_mmap,
                            .progress = [progress](std::uint64_t done, std::uint64_t total) {
                              progress->show(done, total,
                                             mebibytes(done) + '/' + mebibytes(total) + " MiB");
                            }});
  progress->clear();
  return model;
}

void add_session_options(CLI::App& app, SessionChoice& choice) {
  constexpr const char* kGroup = "Session";
  app.add_option("-c,--context", choice.context, "tokens of the sequence at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->option_text("N [the model's]")
      ->group(kGroup);
  app.add_option("--batch", choice.batch, "tokens of a prompt that are computed at once")
      ->check(CLI::Range(1, 65536))
      ->option_text("N [512]")
      ->group(kGroup);
  app.add_option("--cache-type", choice.cache_type, "of keys and values")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->option_text("f16|bf16|f32 [f16; f32 with --exact]")
      ->group(kGroup);
}

Session make_session(const Model& model, const SessionChoice& choice) {
  static const std::map<std::string, DType> kTypes = {
      {"f16", DType::f16}, {"bf16", DType::bf16}, {"f32", DType::f32}};
  SessionOptions options{.max_tokens = choice.context, .batch_tokens = choice.batch};
  options.cache_dtype = model.info().exact != 0 ? DType::f32 : DType::f16;
  if (!choice.cache_type.empty()) options.cache_dtype = kTypes.at(choice.cache_type);
  return Session(model, options);
}

void add_generation_options(CLI::App& app, GenerationChoice& choice) {
  GenerationOptions& options = choice.options;
  SamplingOptions& sampling = options.sampling;
  constexpr const char* kGroup = "Sampling";
  const auto add = [&](const char* name, auto& value, const char* text, const char* form) {
    app.add_option(name, value, text)->option_text(form)->group(kGroup);
  };
  add("-n,--max-tokens", options.max_new_tokens, "tokens of the answer at most",
      "N [until it ends]");
  add("--temp", sampling.temperature, "temperature; 0: the most likely token", "X [0]");
  add("--top-k", sampling.top_k, "the K most likely tokens", "K [off]");
  add("--top-p", sampling.top_p, "the smallest set with this probability", "P [1]");
  add("--min-p", sampling.min_p, "tokens at least P times as likely as the first", "P [0]");
  add("--repeat-penalty", sampling.repetition_penalty, "divides logits of tokens seen", "X [1]");
  add("--repeat-window", sampling.repetition_window, "last tokens it looks at", "N [all]");
  add("--presence-penalty", sampling.presence_penalty, "off logits of tokens answered", "X [0]");
  add("--frequency-penalty", sampling.frequency_penalty, "the same, each time", "X [0]");
  add("--logit-bias", choice.logit_bias, "added to a token's logit", "TOKEN=BIAS ...");
  add("--seed", sampling.seed, "of the random numbers", "N [0]");
  app.add_option_function<std::string>(
         "--order", [&sampling](const std::string& name) { sampling.order = kOrders.at(name); },
         "whose order of filters and temperature")
      ->check(CLI::IsMember({"vllm", "transformers", "llama.cpp"}))
      ->option_text("vllm|transformers|llama.cpp [vllm]")
      ->group(kGroup);
  add("--stop", options.stop, "texts that end the answer", "TEXT ...");
  app.add_flag("--ignore-end", options.ignore_end, "go on behind the end of the text")
      ->group(kGroup);
}

GenerationOptions generation_options(const GenerationChoice& choice) {
  GenerationOptions options = choice.options;
  for (const std::string& text : choice.logit_bias)
    options.sampling.logit_bias.push_back(parse_bias(text));
  return options;
}

}  // namespace headrace::cli
