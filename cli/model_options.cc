#include "model_options.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "command.h"
#include "files.h"
#include "model_shape.h"
#include "options.h"
#include "progress.h"

namespace headrace::cli {
namespace {

const std::map<std::string, headrace_sampling_order> kOrders = {
    {"vllm", HEADRACE_ORDER_VLLM},
    {"transformers", HEADRACE_ORDER_TRANSFORMERS},
    {"llama.cpp", HEADRACE_ORDER_LLAMA_CPP}};

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;

// "42=-1.5", or "42-1.5" as llama.cpp writes it.
headrace_logit_bias parse_bias(const std::string& text) {
  const std::size_t sign = text.find_first_not_of("0123456789");
  if (sign != 0 && sign != std::string::npos && sign < 10) {
    const bool has_equals = text[sign] == '=';
    const std::string bias = text.substr(has_equals ? sign + 1 : sign);
    char* end = nullptr;
    const float value = std::strtof(bias.c_str(), &end);
    const bool has_sign = has_equals || text[sign] == '+' || text[sign] == '-';
    if (has_sign && !bias.empty() && *end == '\0')
      return {static_cast<std::int32_t>(std::strtol(text.c_str(), nullptr, 10)), value};
  }
  throw Error(HEADRACE_INVALID_ARGUMENT,
              '"' + text + "\" is not TOKEN=BIAS; pass, for example, 42=-1.5");
}

std::string check_bias(const std::string& text) {
  try {
    parse_bias(text);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::int64_t context_of(const Model& model, const SessionChoice& choice) {
  const std::int64_t longest = model.info().context_length;
  if (choice.context > longest)
    throw Error(HEADRACE_INVALID_ARGUMENT, "--context " + std::to_string(choice.context) +
                                               " exceeds this model's " + std::to_string(longest) +
                                               " tokens; lower --context");
  return choice.context == 0 ? longest : choice.context;
}

DType cache_dtype_of(const Model& model, const SessionChoice& choice) {
  if (!choice.cache_type.empty()) return dtype_of_cache(choice.cache_type);
  if (model.info().exact != 0) return DType::f32;
  return model.info().device_type == HEADRACE_CUDA ? DType::bf16 : DType::f16;
}

// The command line is already checked: an invalid argument now means an invalid file.
template <class Body>
auto blaming_the_file(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != HEADRACE_INVALID_ARGUMENT) throw;
    throw Error(HEADRACE_IO_ERROR, error.what());
  }
}

Model load(const ModelChoice& choice, const ModelOptions& options) {
  if (!choice.random) {
    require_regular_file(choice.path);
    return blaming_the_file([&] { return Model(choice.path, options); });
  }
  const ModelShape shape(choice.path);
  RandomModel random = *choice.random;
  random.shape = shape.get();
  return shape.blaming_the_file([&] { return Model(random, options); });
}

// The number of "cuda" or "cuda:N"; empty for the CPU.
std::optional<std::int32_t> cuda_device_of(const std::string& device) {
  if (device == "cpu") return std::nullopt;
  return device == "cuda" ? 0 : std::atoi(device.c_str() + std::string("cuda:").size());
}

std::string check_device(const std::string& device) {
  const bool is_number = device.starts_with("cuda:") && device.size() > 5 && device.size() <= 8 &&
                         device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device == "cpu" || device == "cuda" || is_number) return {};
  return '"' + device + "\" is not cpu, cuda or cuda:N; pass, for example, cuda:0";
}

// Help text and value form of an option.
struct About {
  const char* text;
  const char* form;
};

constexpr const char* kSampling = "Sampling";

void add_number(CLI::App& app, const char* names, std::int64_t& value,
                const Range<std::int64_t>& range, const About& about) {
  app.add_option(names, value, about.text)
      ->transform(whole_number(range))
      ->option_text(about.form)
      ->group(kSampling);
}

void add_number(CLI::App& app, const char* names, double& value, const Range<double>& range,
                const About& about) {
  app.add_option(names, value, about.text)
      ->transform(real_number(range))
      ->option_text(about.form)
      ->group(kSampling);
}

}  // namespace

void add_model_path(CLI::App& app, std::string& path) {
  app.add_option("-m,--model", path, "model file (GGUF)")
      ->required()
      ->option_text("FILE REQUIRED")
      ->group("Model");
}

void add_model_or_random(CLI::App& app, std::string& path, std::string& like, RandomModel& random) {
  constexpr const char* kGroup = "Model";
  CLI::Option* file =
      app.add_option("-m,--model", path, "model file (GGUF)")->option_text("FILE")->group(kGroup);
  CLI::Option* shape =
      app.add_option("--random", like,
                     "random weights: a published model (llama-3.1-8b), or a config.json")
          ->option_text("NAME|FILE.json")
          ->excludes(file)
          ->group(kGroup);
  for (CLI::Option* option : add_random_options(app, random, kGroup)) option->needs(shape);
}

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "device that computes; a GPU computes in bf16")
      ->check(check_device)
      ->option_text("cpu|cuda|cuda:N [cpu]")
      ->group("Model");
}

std::string device_note(const std::string& device) {
  if (device == "cpu") return device;
  return device + " (" + device_from_text(device.c_str()).name + ')';
}

CLI::Option* add_fast_flag(CLI::App& app, bool& is_fast) {
  return app.add_flag("--fast", is_fast,
                      "CUDA: large products by cuBLASLt; bits depend on the batch");
}

void add_model_options(CLI::App& app, ModelChoice& choice) {
  constexpr const char* kGroup = "Model";
  add_model_path(app, choice.path);
  add_device_option(app, choice.device);
  app.add_option("-t,--threads", choice.num_threads, "threads (default: all allowed)")
      ->transform(whole_number({1, 1024}))
      ->option_text("N")
      ->group(kGroup);
  app.add_flag("--exact", choice.is_exact, "compute with f32 weights: slower, 4 bytes per weight")
      ->group(kGroup);
  add_fast_flag(app, choice.is_fast)->group(kGroup);
  CLI::Option* mmap =
      app.add_flag("--mmap", choice.uses_mmap, "memory-map the file instead of reading it")
          ->group(kGroup);
  app.add_flag_callback(
         "--no-mmap", [&choice] { choice.uses_mmap = false; }, "read the file (the default)")
      ->excludes(mmap)
      ->group(kGroup);
}

Model load_model(const ModelChoice& choice) {
  const std::optional<std::int32_t> cuda_device = cuda_device_of(choice.device);
  if (cuda_device) device_from_text(choice.device.c_str());  // throws if it is absent
  const auto progress = std::make_shared<Progress>("loading");
  Model model =
      load(choice,
           {.num_threads = choice.num_threads,
            .exact = choice.is_exact,
            .use_mmap = choice.uses_mmap,
            .progress = [progress](std::uint64_t done,
                                   std::uint64_t total) { show_mebibytes(*progress, done, total); },
            .device_type = cuda_device ? HEADRACE_CUDA : HEADRACE_CPU,
            .device_id = cuda_device.value_or(0),
            .fast = choice.is_fast});
  progress->clear();
  return model;
}

Model load_vocabulary(const std::string& path) {
  return load({.path = path}, {.vocab_only = true});
}

void add_session_options(CLI::App& app, SessionChoice& choice) {
  constexpr const char* kGroup = "Session";
  app.add_option("-c,--context,--ctx-size", choice.context,
                 "context length in tokens (prompt plus answer); 0: the model's maximum")
      ->transform(whole_number({0, kMaxTokens}))
      ->option_text("N [0]")
      ->group(kGroup);
  app.add_option("-b,--batch,--batch-size", choice.batch, "prompt tokens processed at once")
      ->transform(whole_number({1, 65536}))
      ->option_text("N [512; cuda: 8192, many requests: 2048]")
      ->group(kGroup);
  app.add_option("--page-size", choice.page_size, "tokens per page of the KV cache")
      ->transform(whole_number({1, kMaxTokens}))
      ->option_text("N [16]")
      ->group(kGroup);
  app.add_option("--cache-type", choice.cache_type, "element type of the KV cache")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->option_text("f16|bf16|f32 [f16; cuda: bf16; --exact: f32]")
      ->group(kGroup);
  add_stored_types(app, choice.k_type, choice.v_type, kGroup);
}

void add_sparq_options(CLI::App& app, SessionChoice& choice) {
  constexpr const char* kGroup = "Session";
  CLI::Option* components =
      app.add_option("--sparq-r", choice.sparq_components,
                     "SparQ attention in decode: components of keys to choose keys by")
          ->transform(whole_number({1, kMaxTokens}))
          ->option_text("N")
          ->group(kGroup);
  CLI::Option* keys =
      app.add_option("--sparq-k", choice.sparq_keys, "SparQ attention in decode: keys to attend to")
          ->transform(whole_number({1, kMaxTokens}))
          ->option_text("N")
          ->group(kGroup);
  components->needs(keys);
  keys->needs(components);
}

const std::vector<std::string>& stored_types() {
  static const std::vector<std::string> kTypes = {"int8", "fp8", "int4", "kivi4", "kivi2"};
  return kTypes;
}

void add_stored_types(CLI::App& app, std::string& k_type, std::string& v_type,
                      const std::string& group) {
  constexpr const char* kStored = "int8|fp8|int4|kivi4|kivi2 [as --cache-type]";
  const CLI::IsMember is_stored_type(stored_types());
  app.add_option_function<std::string>(
         "--kv-type", [&](const std::string& type) { k_type = v_type = type; },
         "quantised keys and values; kivi4 and kivi2 as in KIVI")
      ->check(is_stored_type)
      ->option_text(kStored)
      ->group(group);
  for (const auto& [name, type, what] : {std::tuple("--k-type", &k_type, "quantised keys"),
                                         {"--v-type", &v_type, "quantised values"}})
    app.add_option(name, *type, what)->check(is_stored_type)->option_text(kStored)->group(group);
}

std::optional<DType> stored_dtype(const std::string& type) {
  if (type.empty()) return std::nullopt;
  return type == "int8"    ? DType::i8
         : type == "fp8"   ? DType::f8e4m3
         : type == "int4"  ? DType::i4x2
         : type == "kivi4" ? DType::u4x2
                           : DType::u2x4;
}

DType dtype_of_cache(const std::string& cache_type) {
  return cache_type == "f16" ? DType::f16 : cache_type == "bf16" ? DType::bf16 : DType::f32;
}

Session make_session(const Model& model, const SessionChoice& choice) {
  const SessionOptions options{.max_tokens = context_of(model, choice),
                               .batch_tokens = choice.batch,
                               .cache_dtype = cache_dtype_of(model, choice),
                               .page_size = choice.page_size,
                               .num_pages = choice.num_pages,
                               .k_dtype = stored_dtype(choice.k_type),
                               .v_dtype = stored_dtype(choice.v_type),
                               .sparq_components = choice.sparq_components,
                               .sparq_keys = choice.sparq_keys};
  if (choice.sparq_components > model.info().head_dim)
    throw Error(HEADRACE_INVALID_ARGUMENT, "--sparq-r " + std::to_string(choice.sparq_components) +
                                               " exceeds this model's " +
                                               std::to_string(model.info().head_dim) +
                                               " components of a key; lower --sparq-r");
  return blaming_the_file([&] { return Session(model, options); });
}

EngineOptions engine_options(const Model& model, const SessionChoice& choice) {
  EngineOptions options{.max_tokens = context_of(model, choice), .page_size = choice.page_size};
  if (choice.batch != 0) options.max_batch_tokens = choice.batch;
  options.cache_dtype = cache_dtype_of(model, choice);
  options.k_dtype = stored_dtype(choice.k_type);
  options.v_dtype = stored_dtype(choice.v_type);
  return options;
}

SessionChoice with_completions(const Model& model, const SessionChoice& choice,
                               std::int64_t num_completions, std::int64_t num_prompt_tokens,
                               std::int64_t max_new_tokens) {
  SessionChoice wide = choice;
  wide.context = context_of(model, choice);
  if (max_new_tokens > 0) wide.context = std::min(wide.context, num_prompt_tokens + max_new_tokens);
  const std::int64_t pages = (wide.context + choice.page_size - 1) / choice.page_size;
  wide.num_pages = (num_completions + 1) * pages;
  return wide;
}

void check_fits(const Model& model, const SessionChoice& choice, std::int64_t num_tokens,
                const std::string& what) {
  const std::int64_t context = context_of(model, choice);
  if (num_tokens <= context) return;
  const bool is_longest = context == model.info().context_length;
  throw Error(HEADRACE_INVALID_ARGUMENT,
              std::to_string(num_tokens) + "-token " + what + " exceeds context " +
                  std::to_string(context) +
                  (is_longest ? ", this model's maximum; shorten the text" : "; raise --context"));
}

void add_filter_options(CLI::App& app, SamplingOptions& sampling) {
  add_number(app, "--temp,--temperature", sampling.temperature,
             {.low = 1e-5, .high = 1e5, .also = 0}, {"temperature; 0: greedy", "X [0]"});
  add_number(app, "--top-k", sampling.top_k, {0, INT32_MAX},
             {"keep the K most likely tokens; 0: all", "K [0]"});
  add_number(app, "--top-p", sampling.top_p, {1e-9, 1},
             {"keep the smallest set of tokens whose probability reaches P; 1: all", "P [1]"});
  add_number(app, "--min-p", sampling.min_p, {0, 1},
             {"keep tokens at least P times as likely as the most likely one", "P [0]"});
}

void add_generation_options(CLI::App& app, GenerationChoice& choice) {
  SamplingOptions& sampling = choice.options.sampling;
  add_number(app, "-n,--max-tokens,--n-predict,--predict", choice.max_tokens,
             {.low = 1, .high = kMaxTokens, .also = -1, .meaning = "no limit"},
             {"maximum length of the answer in tokens; -1: until the model ends it", "N [-1]"});
  add_filter_options(app, sampling);
  add_number(app, "--repeat-penalty", sampling.repetition_penalty, {1e-3, 1e3},
             {"repetition penalty; 1: none", "X [1]"});
  add_number(app, "--repeat-window,--repeat-last-n", choice.repeat_window,
             {.low = 1, .high = kMaxTokens, .also = -1, .meaning = "all"},
             {"number of last tokens that the repeat penalty covers; -1: all", "N [-1]"});
  add_number(app, "--presence-penalty", sampling.presence_penalty, {-1e6, 1e6},
             {"subtract X from the logit of every token in the answer", "X [0]"});
  add_number(app, "--frequency-penalty", sampling.frequency_penalty, {-1e6, 1e6},
             {"subtract X times a token's count in the answer from its logit", "X [0]"});
  add_list(app, "--logit-bias", choice.logit_bias, "add BIAS to a token's logit; may be repeated")
      ->check(check_bias)
      ->option_text("TOKEN=BIAS")
      ->group(kSampling);
  add_number(app, "--seed", choice.seed,
             {.low = 0, .high = INT64_MAX, .also = -1, .meaning = "random"},
             {"random seed; -1: draw one and print it", "N [0]"});
  app.add_option_function<std::string>(
         "--order", [&sampling](const std::string& name) { sampling.order = kOrders.at(name); },
         "order of the sampling filters and the temperature")
      ->check(CLI::IsMember({"vllm", "transformers", "llama.cpp"}))
      ->option_text("vllm|transformers|llama.cpp [vllm]")
      ->group(kSampling);
  add_list(app, "--stop,--reverse-prompt", choice.options.stop,
           "stop string: ends the answer, is not printed; may be repeated")
      ->option_text("TEXT")
      ->group(kSampling);
  app.add_flag("--ignore-end,--ignore-eos", choice.options.ignore_end, "continue past end-of-text")
      ->group(kSampling);
}

std::uint32_t random_seed() {
  std::uint32_t seed = 0;
  if (getentropy(&seed, sizeof seed) != 0)
    throw Error(HEADRACE_INTERNAL, "the system has no random numbers; pass --seed");
  return seed;
}

GenerationOptions generation_options(const GenerationChoice& choice) {
  GenerationOptions options = choice.options;
  options.max_new_tokens = std::max<std::int64_t>(choice.max_tokens, 0);
  options.sampling.repetition_window = std::max<std::int64_t>(choice.repeat_window, 0);
  options.sampling.seed = static_cast<std::uint64_t>(choice.seed);
  if (choice.seed < 0) {
    options.sampling.seed = random_seed();
    const std::string seed = std::to_string(options.sampling.seed);
    print_note("seed " + seed + "; --seed " + seed + " repeats this run");
  }
  for (const std::string& text : choice.logit_bias)
    options.sampling.logit_bias.push_back(parse_bias(text));
  return options;
}

}  // namespace headrace::cli
