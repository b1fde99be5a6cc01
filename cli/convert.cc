// headrace convert: writes a model with fewer KV heads.
#include <sys/stat.h>

#include <memory>
#include <stdexcept>

#include "command.h"
#include "headrace/model.hpp"
#include "interrupt.h"
#include "options.h"
#include "progress.h"

namespace headrace::cli {
namespace {

struct ConvertOptions {
  std::string input, output, type = "bf16";
  std::int64_t num_kv_heads = 0;
  bool overwrites = false;
};

int run_convert(const ConvertOptions& options) {
  struct stat info {};
  if (!options.overwrites && stat(options.output.c_str(), &info) == 0 && S_ISREG(info.st_mode))
    throw Error(HEADRACE_IO_ERROR,
                options.output + ": exists; name another file or pass --overwrite");
  Progress progress("writing");
  const auto show = [&](std::uint64_t done, std::uint64_t total) {
    if (is_interrupted()) throw std::runtime_error("interrupted");
    show_mebibytes(progress, done, total);
  };
  catch_interrupts();
  try {
    convert_model(options.input, options.output, options.num_kv_heads,
                  options.type == "bf16" ? "BF16" : "F16", ModelOptions{.progress = show});
  } catch (const Error&) {
    progress.clear();
    if (is_interrupted()) end_by_interrupt();  // the unfinished file is removed
    throw;
  }
  progress.clear();
  return kExitOk;
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  CLI::App* convert = app.add_subcommand(
      "convert", "Write a model with fewer KV heads: the mean of adjacent heads");
  auto options = std::make_shared<ConvertOptions>();
  convert->add_option("input", options->input, "GGUF file to read")
      ->required()
      ->option_text("REQUIRED");
  convert->add_option("output", options->output, "GGUF file to write")
      ->required()
      ->option_text("REQUIRED");
  convert->add_option("--kv-heads", options->num_kv_heads, "KV heads, a divisor of the model's")
      ->required()
      ->transform(whole_number({1, 4096}))
      ->option_text("N REQUIRED");
  convert->add_option("--type", options->type, "of the K and V matrices: bf16 or f16")
      ->check(CLI::IsMember({"bf16", "f16"}))
      ->option_text("bf16|f16 [bf16]");
  convert->add_flag("--overwrite", options->overwrites, "replace a file of this name");
  convert->callback([&action, options] { action = [options] { return run_convert(*options); }; });
}

}  // namespace headrace::cli
