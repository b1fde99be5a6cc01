// Models: loading, info, tokens.
#include <cstring>

#include "backends/cuda/backend.h"
#include "base/callback.h"
#include "capi/capi_common.h"
#include "capi/model_common.h"
#include "core/device.h"

namespace headrace::capi {
namespace {

constexpr int kMaxThreads = 1024;

Status choose_device(const headrace_model_options& options, engine::LoadOptions& load) {
  if (options.device_type != HEADRACE_CPU && options.device_type != HEADRACE_CUDA)
    return invalid_argument("device_type={}: must be HEADRACE_CPU (0) or HEADRACE_CUDA ({})",
                            options.device_type, static_cast<int>(HEADRACE_CUDA));
  if (options.device_type == HEADRACE_CPU) {
    if (options.fast != 0)
      return unsupported(
          "fast=1 on the CPU: its products have one speed; pass fast=0 or a CUDA device");
    if (options.device_id == 0) return std::nullopt;
    return invalid_argument("device_id={}: must be 0 on the CPU; pass 0 or set device_type",
                            options.device_id);
  }
  if (options.exact != 0)
    return unsupported(
        "exact=1 on a CUDA device: weights and activations are bf16 there; pass exact=0 or load "
        "the model on the CPU");
  Result<DeviceInfo> device = cuda::device_info(options.device_id);
  if (!device.ok()) return std::move(device.failure());
  load.device = device.value();
  if (options.fast == 0) return std::nullopt;
  // Before the weights take memory; executors load it again.
  Result<cuda::OwnedCublasLt> cublaslt = cuda::make_cublaslt(options.device_id);
  return cublaslt.ok() ? Status() : std::move(cublaslt.failure());
}

void fill_sizes(const engine::LanguageModel& m, headrace_model_info& info) {
  const model::Decoder& decoder = *m.decoder;
  const model::Config& c = decoder.config;
  info.num_layers = c.num_layers;
  info.hidden_size = c.hidden_size;
  info.ffn_size = c.ffn_size;
  info.context_length = c.context_length;
  info.num_heads = c.num_heads;
  info.num_kv_heads = c.num_kv_heads;
  info.head_dim = c.head_dim;
  info.head_dim_v = c.head_dim_v;
  info.weight_bytes = static_cast<std::int64_t>(decoder.weight_bytes());
  info.token_weight_bytes =
      info.weight_bytes -
      (decoder.output ? static_cast<std::int64_t>(decoder.embedding.data.bytes()) : 0);
  info.num_threads = m.host.num_units;
  info.exact = m.mode == MatmulMode::exact ? 1 : 0;
  info.fast = m.mode == MatmulMode::fast ? 1 : 0;
  const DeviceInfo& device = m.device == nullptr ? m.host : m.device->info();
  info.device_type = device.device_type;
  info.device_id = device.device_id;
}

headrace_model_info info_of_model(const engine::LanguageModel& m) {
  headrace_model_info info{};
  info.architecture = m.architecture.c_str();
  info.name = m.name.c_str();
  info.weight_types = m.weight_types.c_str();
  info.chat_template = m.chat_template.ok() ? m.chat_template.value().name() : "";
  info.vocab_size = m.tokenizer.vocab_size();
  info.num_parameters = m.num_parameters;
  info.bos_token = m.tokenizer.bos().value_or(-1);
  info.eos_token = m.tokenizer.eos().value_or(-1);
  if (m.decoder) fill_sizes(m, info);
  return info;
}

}  // namespace

Result<engine::LoadOptions> load_options(const headrace_model_options& options) {
  Result<DeviceInfo> host = cpu_info();
  if (!host.ok()) return std::move(host.failure());
  if (options.num_threads < 0 || options.num_threads > kMaxThreads)
    return invalid_argument("num_threads={}: must be 1 to {}; pass 0 for all available",
                            options.num_threads, kMaxThreads);
  if (options.num_threads > 0) host.value().num_units = options.num_threads;
  engine::LoadOptions load;
  load.host = host.value();
  if (auto bad = choose_device(options, load)) return std::move(*bad);
  if (options.exact != 0) load.mode = MatmulMode::exact;
  if (options.fast != 0) load.mode = MatmulMode::fast;
  load.vocab_only = options.vocab_only != 0;
  load.weights.use_mmap = options.use_mmap != 0;
  if (options.progress != nullptr)
    load.weights.progress = [fn = options.progress, user = options.progress_user](
                                std::uint64_t done, std::uint64_t total) {
      return call_back("progress", [&] { fn(user, done, total); });
    };
  return load;
}

}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

headrace_status headrace_model_options_init_sized(headrace_model_options* options,
                                                  size_t struct_size) {
  return init("options", {}, options, struct_size);
}

headrace_status headrace_model_load(const char* path, const headrace_model_options* options,
                                    headrace_model** model) {
  return guarded([&] {
    if (path == nullptr) return fail(null_argument("path", "pass the path of a GGUF file"));
    if (model == nullptr)
      return fail(null_argument("model", "pass the address of a model pointer"));
    *model = nullptr;
    headrace_model_options ours{};
    if (auto bad = read_struct("options", options, ours)) return fail(std::move(*bad));
    headrace::Result<headrace::engine::LoadOptions> load = load_options(ours);
    if (!load.ok()) return fail(std::move(load.failure()));
    auto loaded = headrace::engine::load_language_model(path, load.value());
    if (!loaded.ok()) return fail(std::move(loaded.failure()));
    *model = new headrace_model{.model = std::move(loaded.value())};
    return HEADRACE_OK;
  });
}

void headrace_model_destroy(headrace_model* model) { delete model; }

headrace_status headrace_model_get_info(const headrace_model* model, headrace_model_info* info) {
  return guarded([&] {
    if (model == nullptr) return fail(null_argument("model", "load one first"));
    return give("info", info_of_model(model->model), info);
  });
}

headrace_status headrace_tokenize(const headrace_model* model, const char* text, size_t num_bytes,
                                  uint32_t flags, int32_t* tokens, size_t capacity, size_t* count) {
  return guarded([&] {
    if (model == nullptr) return fail(null_argument("model", "load one first"));
    if (text == nullptr && num_bytes > 0) return fail(null_argument("text", "pass the text"));
    constexpr uint32_t kKnown = HEADRACE_TOKENIZE_SPECIAL | HEADRACE_TOKENIZE_BOS;
    if ((flags & ~kKnown) != 0)
      return fail(headrace::invalid_argument(
          "flags={}: must have no unknown bits; pass headrace_tokenize_flags values", flags));
    using headrace::text::ParseSpecial;
    auto encoded = model->model.tokenizer.encode(
        {text, num_bytes},
        (flags & HEADRACE_TOKENIZE_SPECIAL) != 0 ? ParseSpecial::all : ParseSpecial::user_defined,
        (flags & HEADRACE_TOKENIZE_BOS) != 0);
    if (!encoded.ok()) return fail(std::move(encoded.failure()));
    return give_list(encoded.value(), "tokens", tokens, capacity, count);
  });
}

headrace_status headrace_detokenize(const headrace_model* model, const int32_t* tokens,
                                    size_t num_tokens, char* text, size_t capacity, size_t* count) {
  return guarded([&] {
    if (model == nullptr) return fail(null_argument("model", "load one first"));
    if (tokens == nullptr && num_tokens > 0)
      return fail(null_argument("tokens", "pass an array of num_tokens ids"));
    auto decoded = model->model.tokenizer.decode({tokens, num_tokens});
    if (!decoded.ok()) return fail(std::move(decoded.failure()));
    return give_list(decoded.value(), "text", text, capacity, count);
  });
}

headrace_status headrace_token_text(const headrace_model* model, int32_t token, char* text,
                                    size_t capacity, size_t* count) {
  return guarded([&] {
    if (model == nullptr) return fail(null_argument("model", "load one first"));
    const auto& tokenizer = model->model.tokenizer;
    if (headrace::Status bad = tokenizer.check(token)) return fail(std::move(*bad));
    return give_list(tokenizer.bytes_of(token), "text", text, capacity, count);
  });
}

int headrace_token_is_end(const headrace_model* model, int32_t token) {
  if (model == nullptr) return 0;
  const auto& ends = model->model.tokenizer.end_tokens();
  return std::binary_search(ends.begin(), ends.end(), token) ? 1 : 0;
}

}  // extern "C"
