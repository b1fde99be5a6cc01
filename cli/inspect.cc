// headrace inspect: metadata and tensors of a model file.
#include <memory>

#include "command.h"
#include "headrace/model.hpp"
#include "machine.h"
#include "printable.h"

namespace headrace::cli {
namespace {

struct InspectOptions {
  std::string path;
  Format format = Format::text;
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t n : shape) text += (text.empty() ? "" : " x ") + std::to_string(n);
  return text;
}

int run_inspect(const InspectOptions& options) {
  const ModelFile file(options.path);
  Table metadata{.key = "metadata",
                 .columns = {{"key", "key"}, {"kind", "kind"}, {"value", "value"}},
                 .rows = {}};
  for (std::int64_t i = 0; i < file.num_keys(); ++i) {
    const ModelFile::Entry entry = file.entry(i);
    metadata.rows.push_back(
        {printable(entry.key), std::string(entry.kind), printable(entry.value)});
  }
  Table tensors{.key = "tensors",
                .columns = {{"name", "tensor"},
                            {"type", "type"},
                            {"shape", "shape"},
                            {"offset", "offset"},
                            {"bytes", "bytes"}},
                .rows = {}};
  std::int64_t bytes = 0, elements = 0;
  for (std::int64_t i = 0; i < file.num_weights(); ++i) {
    const ModelFile::Weight weight = file.weight(i);
    tensors.rows.push_back({printable(weight.name), std::string(weight.type),
                            shape_text(weight.shape), static_cast<std::int64_t>(weight.offset),
                            static_cast<std::int64_t>(weight.bytes)});
    bytes += static_cast<std::int64_t>(weight.bytes);
    std::int64_t product = 1;
    for (const std::int64_t n : weight.shape) product *= n;
    elements += product;
  }
  Report report;
  report.notes = {{"file", options.path},
                  {"format", std::string(file.format())},
                  {"tensors", file.num_weights()},
                  {"elements", elements},
                  {"tensor_bytes", bytes_text(bytes)}};
  report.tables.push_back(std::move(metadata));
  report.tables.push_back(std::move(tensors));
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* inspect = app.add_subcommand("inspect", "Show metadata and tensors of a model file");
  auto options = std::make_shared<InspectOptions>();
  inspect->add_option("file", options->path, "model file (GGUF)")->required();
  add_format_option(*inspect, options->format);
  inspect->callback([&action, options] { action = [options] { return run_inspect(*options); }; });
}

}  // namespace headrace::cli
