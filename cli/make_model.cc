// headrace make-model: writes a model with random weights.
#include <sys/stat.h>

#include <memory>
#include <stdexcept>

#include "command.h"
#include "interrupt.h"
#include "model_options.h"
#include "model_shape.h"
#include "options.h"
#include "progress.h"

namespace headrace::cli {
namespace {

struct MakeOptions {
  std::string like, path;
  RandomModel random;
  int num_threads = 0;
  bool overwrites = false;
};

int run_make(MakeOptions& options) {
  const ModelShape shape(options.like);
  options.random.shape = shape.get();
  struct stat info {};
  if (!options.overwrites && stat(options.path.c_str(), &info) == 0 && S_ISREG(info.st_mode))
    throw Error(HEADRACE_IO_ERROR,
                options.path + ": exists; name another file or pass --overwrite");
  Progress progress("writing");
  const auto show = [&](std::uint64_t done, std::uint64_t total) {
    if (is_interrupted()) throw std::runtime_error("interrupted");
    show_mebibytes(progress, done, total);
  };
  catch_interrupts();
  try {
    shape.blaming_the_file([&] {
      options.random.write(options.path, {.num_threads = options.num_threads, .progress = show});
    });
  } catch (const Error&) {
    progress.clear();
    if (is_interrupted()) end_by_interrupt();  // the unfinished file is removed
    throw;
  }
  progress.clear();
  return kExitOk;
}

}  // namespace

void add_make_model(CLI::App& app, Action& action) {
  CLI::App* make = app.add_subcommand(
      "make-model", "Write a GGUF file with random weights, for timing at full size");
  auto options = std::make_shared<MakeOptions>();
  make->add_option("--like", options->like, "published model (llama-3.1-8b), or a config.json")
      ->required()
      ->option_text("NAME|FILE.json REQUIRED");
  add_random_options(*make, options->random, "Options");
  make->add_option("-o,--output", options->path, "file to write")
      ->required()
      ->option_text("FILE REQUIRED");
  make->add_option("-t,--threads", options->num_threads, "threads (default: all allowed)")
      ->transform(whole_number({1, 1024}))
      ->option_text("N");
  make->add_flag("--overwrite", options->overwrites, "replace a file of this name");
  make->callback([&action, options] { action = [options] { return run_make(*options); }; });
}

}  // namespace headrace::cli
