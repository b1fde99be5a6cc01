// Model files that are written: random weights (shapes, files, loading without a file), fewer KV
// heads.
#include "backends/cpu/thread_pool.h"
#include "capi/capi_common.h"
#include "capi/model_common.h"
#include "capi/model_file_common.h"
#include "model/convert.h"
#include "model/random_model.h"

namespace headrace::capi {
namespace {

headrace_model_shape to_c(const model::ModelShape& shape) {
  headrace_model_shape c{};
  c.name = shape.name.c_str();
  c.architecture = shape.architecture.c_str();
  c.num_layers = shape.num_layers;
  c.hidden_size = shape.hidden_size;
  c.ffn_size = shape.ffn_size;
  c.vocab_size = shape.vocab_size;
  c.num_heads = shape.num_heads;
  c.num_kv_heads = shape.num_kv_heads;
  c.head_dim = shape.head_dim;
  c.context_length = shape.context_length;
  c.window = shape.window;
  c.rms_eps = shape.rms_eps;
  c.rope_base = shape.rope_base;
  c.rope_linear_factor = shape.rope_linear_factor;
  if (shape.rope_llama3) {
    c.rope_llama3_factor = shape.rope_llama3->factor;
    c.rope_low_freq_factor = shape.rope_llama3->low_freq_factor;
    c.rope_high_freq_factor = shape.rope_llama3->high_freq_factor;
    c.rope_original_context_length = shape.rope_llama3->original_context_length;
  }
  c.bos_token = shape.bos_token;
  c.eos_token = shape.eos_token;
  c.tied_embeddings = shape.has_tied_embeddings ? 1 : 0;
  return c;
}

Result<model::ModelShape> read_shape(const headrace_model_shape* theirs) {
  if (theirs == nullptr) return null_argument("shape", "pass one of headrace_model_shape_find()");
  headrace_model_shape c{};
  if (auto bad = copy_versioned("shape", theirs, sizeof c, &c, sizeof c)) return std::move(*bad);
  if (c.name == nullptr) return null_argument("shape.name", "pass \"\" for none");
  if (c.architecture == nullptr) return null_argument("shape.architecture", "pass \"llama\"");
  model::ModelShape shape{.name = c.name,
                          .architecture = c.architecture,
                          .num_layers = c.num_layers,
                          .hidden_size = c.hidden_size,
                          .ffn_size = c.ffn_size,
                          .vocab_size = c.vocab_size,
                          .num_heads = c.num_heads,
                          .num_kv_heads = c.num_kv_heads,
                          .head_dim = c.head_dim,
                          .context_length = c.context_length,
                          .window = c.window,
                          .rms_eps = c.rms_eps,
                          .rope_base = c.rope_base,
                          .rope_linear_factor = c.rope_linear_factor,
                          .has_tied_embeddings = c.tied_embeddings != 0,
                          .bos_token = c.bos_token,
                          .eos_token = c.eos_token};
  if (c.rope_llama3_factor != 0)
    shape.rope_llama3 = {.factor = c.rope_llama3_factor,
                         .low_freq_factor = c.rope_low_freq_factor,
                         .high_freq_factor = c.rope_high_freq_factor,
                         .original_context_length = c.rope_original_context_length};
  return shape;
}

Result<WeightType> read_weight_type(const char* name) {
  if (name == nullptr) return null_argument("weight_type", "pass \"BF16\"");
  std::string names;
  for (const WeightTypeInfo& info : weight_types()) {
    if (std::string_view(name) == info.name) return info.type;
    names += format_text("{}{}", names.empty() ? "" : ", ", info.name);
  }
  return invalid_argument("weight_type=\"{}\": must be one of {}; pass one of them", name, names);
}

// A random model that is checked and ready to be written.
struct Request {
  RandomFile random;
  engine::LoadOptions load;
};

Result<Request> read_request(const headrace_model_shape* shape, const char* weight_type,
                             std::uint64_t seed, const headrace_model_options* options) {
  Result<model::ModelShape> read = read_shape(shape);
  if (!read.ok()) return std::move(read.failure());
  Result<WeightType> type = read_weight_type(weight_type);
  if (!type.ok()) return std::move(type.failure());
  headrace_model_options ours{};
  if (auto bad = read_struct("options", options, ours)) return std::move(*bad);
  Result<engine::LoadOptions> load = load_options(ours);
  if (!load.ok()) return std::move(load.failure());
  Result<RandomFile> random = model::make_random_model(read.value(), type.value(), seed);
  if (!random.ok()) return std::move(random.failure());
  return Request{std::move(random.value()), std::move(load.value())};
}

Status write(const Request& request, const OutputFile& out) {
  const ParallelFor parallel_for = [&](std::int64_t num_tasks,
                                       const std::function<void(std::int64_t)>& task) {
    const auto run_task = [](void* context, std::int64_t i, int) {
      (*static_cast<const std::function<void(std::int64_t)>*>(context))(i);
    };
    return cpu::parallel_for(num_tasks, request.load.host.num_units, run_task,
                             const_cast<void*>(static_cast<const void*>(&task)));
  };
  return write_random_file(request.random, out, parallel_for, request.load.weights.progress);
}

Status write_file(const Request& request, const char* path) {
  Result<OutputFile> out = OutputFile::create(path);
  if (!out.ok()) return std::move(out.failure());
  HEADRACE_TRY(write(request, out.value()));
  return out.value().commit();
}

Result<engine::LanguageModel> load(Request& request) {
  Result<OutputFile> memory = OutputFile::create_in_memory();
  if (!memory.ok()) return std::move(memory.failure());
  if (auto bad = write(request, memory.value())) return std::move(*bad);
  request.load.weights.use_mmap = true;  // no second copy of the file
  const std::string& path = memory.value().path();
  Result<engine::LanguageModel> loaded = engine::load_language_model(path, request.load);
  const std::string& name = request.random.file.path;
  if (loaded.ok())
    loaded.value().path = name;
  else if (std::string& text = loaded.failure().message; text.starts_with(path))
    text.replace(0, path.size(), name);
  return loaded;
}

Status convert(const char* input, std::int64_t num_kv_heads, const char* weight_type,
               const headrace_model_options* options, const char* output) {
  if (input == nullptr) return null_argument("input", "pass the path of the file to read");
  if (output == nullptr) return null_argument("output", "pass the path of the file to write");
  Result<WeightType> type = read_weight_type(weight_type);
  if (!type.ok()) return std::move(type.failure());
  headrace_model_options ours{};
  HEADRACE_TRY(read_struct("options", options, ours));
  Result<engine::LoadOptions> load = load_options(ours);
  if (!load.ok()) return std::move(load.failure());
  return model::convert_model(input, output,
                              {.num_kv_heads = num_kv_heads,
                               .type = type.value(),
                               .progress = load.value().weights.progress});
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

const char* headrace_model_shape_name(int64_t index) {
  const auto shapes = headrace::model::known_shapes();
  if (index < 0 || index >= static_cast<int64_t>(shapes.size())) return nullptr;
  return shapes[static_cast<std::size_t>(index)].name.c_str();
}

headrace_status headrace_model_shape_find(const char* name, headrace_model_shape* shape) {
  return guarded([&] {
    if (name == nullptr) return fail(null_argument("name", "pass \"llama-3.1-8b\""));
    std::string names;
    for (const headrace::model::ModelShape& known : headrace::model::known_shapes()) {
      if (known.name == name) return give("shape", to_c(known), shape);
      names += headrace::format_text("{}{}", names.empty() ? "" : ", ", known.name);
    }
    return fail(headrace::invalid_argument("name=\"{}\": must be one of {}; pass one of them", name,
                                           names));
  });
}

headrace_status headrace_model_file_describe(const headrace_model_shape* shape,
                                             const char* weight_type, headrace_model_file** file) {
  return guarded([&] {
    if (file == nullptr) return fail(null_argument("file", "pass the address of a file pointer"));
    *file = nullptr;
    headrace::Result<Request> request = read_request(shape, weight_type, 0, nullptr);
    if (!request.ok()) return fail(std::move(request.failure()));
    *file = new_model_file(std::move(request.value().random.file));
    return HEADRACE_OK;
  });
}

headrace_status headrace_random_model_write(const headrace_model_shape* shape,
                                            const char* weight_type, uint64_t seed,
                                            const headrace_model_options* options,
                                            const char* path) {
  return guarded([&] {
    if (path == nullptr) return fail(null_argument("path", "pass the path of the file to write"));
    headrace::Result<Request> request = read_request(shape, weight_type, seed, options);
    if (!request.ok()) return fail(std::move(request.failure()));
    return status_of(write_file(request.value(), path));
  });
}

headrace_status headrace_random_model_load(const headrace_model_shape* shape,
                                           const char* weight_type, uint64_t seed,
                                           const headrace_model_options* options,
                                           headrace_model** model) {
  return guarded([&] {
    if (model == nullptr)
      return fail(null_argument("model", "pass the address of a model pointer"));
    *model = nullptr;
    headrace::Result<Request> request = read_request(shape, weight_type, seed, options);
    if (!request.ok()) return fail(std::move(request.failure()));
    headrace::Result<headrace::engine::LanguageModel> loaded = load(request.value());
    if (!loaded.ok()) return fail(std::move(loaded.failure()));
    *model = new headrace_model{.model = std::move(loaded.value())};
    return HEADRACE_OK;
  });
}

headrace_status headrace_model_convert(const char* input, int64_t num_kv_heads,
                                       const char* weight_type,
                                       const headrace_model_options* options, const char* output) {
  return guarded(
      [&] { return status_of(convert(input, num_kv_heads, weight_type, options, output)); });
}

}  // extern "C"
