// headrace inspect: summary, metadata and tensors of a model file.
#include <charconv>
#include <map>
#include <memory>
#include <optional>

#include "command.h"
#include "files.h"
#include "headrace/model.hpp"
#include "printable.h"

namespace headrace::cli {
namespace {

struct InspectOptions {
  std::string path;
  Format format = Format::text;
};

using Metadata = std::map<std::string, std::string, std::less<>>;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t n : shape) text += (text.empty() ? "" : " x ") + std::to_string(n);
  return text;
}

Metadata metadata_of(const ModelFile& file) {
  Metadata metadata;
  for (std::int64_t i = 0; i < file.num_keys(); ++i)
    metadata.emplace(file.entry(i).key, file.entry(i).value);
  return metadata;
}

std::string text_of(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : printable(found->second);
}

// Empty if the key is absent or not a single integer (some files have a list, one per layer).
std::optional<std::int64_t> number_of(const Metadata& metadata, const std::string& key) {
  const std::string text = text_of(metadata, key);
  const char* end = text.data() + text.size();
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

Cell cell_of(const std::optional<std::int64_t>& number) { return number ? Cell(*number) : Cell(); }

// Sizes from the metadata, by GGUF's key names; valid for any architecture.
struct Sizes {
  std::optional<std::int64_t> layers, context, hidden, heads, kv_heads, key_dim, value_dim;

  Sizes(const Metadata& metadata, const std::string& architecture) {
    const auto number = [&](const char* key) {
      return number_of(metadata, architecture + '.' + key);
    };
    layers = number("block_count");
    context = number("context_length");
    hidden = number("embedding_length");
    heads = number("attention.head_count");
    kv_heads = number("attention.head_count_kv");
    if (!kv_heads && !metadata.contains(architecture + ".attention.head_count_kv"))
      kv_heads = heads;
    key_dim = number("attention.key_length");
    value_dim = number("attention.value_length");
    if (!hidden || heads.value_or(0) < 1) return;
    if (!key_dim) key_dim = *hidden / *heads;
    if (!value_dim) value_dim = *hidden / *heads;
  }

  // K and V of one token in all layers, 2 bytes per element.
  std::optional<std::int64_t> kv_cache_bytes() const {
    if (!layers || !kv_heads || !key_dim || !value_dim) return std::nullopt;
    std::int64_t bytes = 2, dims = 0;
    const bool overflows = __builtin_add_overflow(*key_dim, *value_dim, &dims) ||
                           __builtin_mul_overflow(bytes, *layers, &bytes) ||
                           __builtin_mul_overflow(bytes, *kv_heads, &bytes) ||
                           __builtin_mul_overflow(bytes, dims, &bytes);
    return overflows ? std::nullopt : std::optional(bytes);
  }
};

struct Weights {
  std::int64_t parameters = 0, bytes = 0;
};

Table summary_table(const Metadata& metadata, const Weights& weights) {
  constexpr double kKiB = 1024, kMiB = 1024 * 1024;
  const std::string architecture = text_of(metadata, "general.architecture");
  const Sizes sizes(metadata, architecture);
  return {.key = "summary",
          .columns = {{"name", "name"},
                      {"architecture", "architecture"},
                      {"num_layers", "layers"},
                      {"context_length", "context"},
                      {"hidden_size", "hidden size"},
                      {"num_heads", "heads"},
                      {"num_kv_heads", "KV heads"},
                      {"head_dim", "head_dim"},
                      {"num_parameters", "parameters"},
                      {"weight_bytes", "weights MiB", 1, kMiB},
                      {"kv_cache_bytes_per_token", "KV cache KiB per token (f16)", 1, kKiB}},
          .rows = {{text_of(metadata, "general.name"), architecture, cell_of(sizes.layers),
                    cell_of(sizes.context), cell_of(sizes.hidden), cell_of(sizes.heads),
                    cell_of(sizes.kv_heads), cell_of(sizes.key_dim), weights.parameters,
                    weights.bytes, cell_of(sizes.kv_cache_bytes())}}};
}

Table metadata_table(const ModelFile& file) {
  Table table{.key = "metadata",
              .columns = {{"key", "key"}, {"type", "type"}, {"value", "value"}},
              .rows = {}};
  for (std::int64_t i = 0; i < file.num_keys(); ++i) {
    const ModelFile::Entry entry = file.entry(i);
    table.rows.push_back({printable(entry.key), std::string(entry.kind), printable(entry.value)});
  }
  return table;
}

Table tensor_table(const ModelFile& file, Weights& sum) {
  Table table{.key = "tensors",
              .columns = {{"name", "tensor"},
                          {"type", "type"},
                          {"shape", "shape"},
                          {"offset", "offset"},
                          {"bytes", "bytes"}},
              .rows = {}};
  for (std::int64_t i = 0; i < file.num_weights(); ++i) {
    const ModelFile::Weight weight = file.weight(i);
    const auto bytes = static_cast<std::int64_t>(weight.bytes);
    table.rows.push_back({printable(weight.name), std::string(weight.type),
                          shape_text(weight.shape), static_cast<std::int64_t>(weight.offset),
                          bytes});
    std::int64_t elements = 1;
    for (const std::int64_t n : weight.shape) elements *= n;
    sum.parameters += elements;
    sum.bytes += bytes;
  }
  return table;
}

int run_inspect(const InspectOptions& options) {
  require_regular_file(options.path);
  const ModelFile file(options.path);
  Weights weights;
  Table tensors = tensor_table(file, weights);
  Report report;
  report.notes = {{"file", printable(options.path)},
                  {"format", std::string(file.format())},
                  {"tensors", file.num_weights()}};
  report.tables = {summary_table(metadata_of(file), weights), metadata_table(file),
                   std::move(tensors)};
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* inspect =
      app.add_subcommand("inspect", "Show summary, metadata and tensors of a model file");
  auto options = std::make_shared<InspectOptions>();
  inspect->add_option("file,-m,--model", options->path, "model file (GGUF)")
      ->required()
      ->option_text("FILE REQUIRED");
  add_format_option(*inspect, options->format);
  inspect->callback([&action, options] { action = [options] { return run_inspect(*options); }; });
}

}  // namespace headrace::cli
