// headrace perplexity: how well a model predicts a text, token by token.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>

#include "answer.h"
#include "command.h"
#include "files.h"
#include "model_options.h"
#include "options.h"
#include "progress.h"

namespace headrace::cli {
namespace {

struct PerplexityOptions {
  ModelChoice model;
  SessionChoice session;
  std::string text_path, logits_path, tokens_path;
  std::int64_t window = 512;
  Format format = Format::text;
};

// -log softmax(logits)[token], in double.
double loss_of(std::span<const float> logits, std::int32_t token) {
  double largest = -INFINITY, sum = 0;
  for (const float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

// Raw little-endian values, row after row.
class Dump {
 public:
  explicit Dump(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_.open(path, std::ios::binary);
    if (!file_) fail_to_open(path, "writing");
  }
  template <class T>
  void write(std::span<const T> values) {
    if (path_.empty()) return;
    file_.write(reinterpret_cast<const char*>(values.data()),
                static_cast<std::streamsize>(values.size_bytes()));
    if (!file_.flush()) throw Error(HEADRACE_IO_ERROR, path_ + ": cannot be written");
  }

 private:
  std::string path_;
  std::ofstream file_;
};

struct Losses {
  double sum = 0, squares = 0;
  std::int64_t count = 0;

  void add(double loss) {
    sum += loss;
    squares += loss * loss;
    ++count;
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  // Standard error of the mean.
  double error() const {
    if (count < 2) return 0;
    const auto n = static_cast<double>(count);
    return std::sqrt(std::max(0.0, squares / n - mean() * mean()) / (n - 1));
  }
};

Losses measure(const Model& model, const std::vector<std::int32_t>& tokens,
               const PerplexityOptions& options) {
  const auto vocab_size = static_cast<std::size_t>(model.info().vocab_size);
  const auto window = static_cast<std::size_t>(options.window);
  SessionChoice choice = options.session;
  check_fits(model, choice, options.window, "window (--window)");
  if (choice.context == 0) choice.context = options.window;
  Session session = make_session(model, choice);
  Dump logits_dump(options.logits_path);
  Dump(options.tokens_path).write(std::span<const std::int32_t>(tokens));
  std::vector<float> logits(window * vocab_size);
  Losses losses;
  Progress progress("perplexity");
  for (std::size_t begin = 0; begin < tokens.size(); begin += window) {
    progress.show(begin, tokens.size(),
                  std::to_string(begin) + '/' + std::to_string(tokens.size()) + " tokens");
    const auto part = std::span(tokens).subspan(begin, std::min(window, tokens.size() - begin));
    session.truncate(0);
    session.append(part, logits.data());
    for (std::size_t i = 0; i + 1 < part.size(); ++i)
      losses.add(loss_of({logits.data() + i * vocab_size, vocab_size}, part[i + 1]));
    logits_dump.write(std::span<const float>(logits.data(), part.size() * vocab_size));
  }
  progress.clear();
  return losses;
}

int run_perplexity(const PerplexityOptions& options) {
  const Model model = load_model(options.model);
  const std::vector<std::int32_t> tokens = model.tokenize(read_text(options.text_path));
  if (tokens.size() < 2)
    throw Error(HEADRACE_INVALID_ARGUMENT, options.text_path + ": " +
                                               std::to_string(tokens.size()) +
                                               " tokens; pass a text of at least 2");
  const Losses losses = measure(model, tokens, options);
  if (!std::isfinite(losses.mean())) fail_of_damaged_weights();
  const double perplexity = std::exp(losses.mean());
  Report report;
  report.tables.push_back(
      {.key = "perplexity",
       .columns = {{"tokens", "tokens"},
                   {"predicted", "predicted"},
                   {"window", "window"},
                   {"nats_per_token", "nats/token", 5},
                   {"perplexity", "perplexity", 4},
                   {"standard_error", "+-", 4}},
       .rows = {{static_cast<std::int64_t>(tokens.size()), losses.count, options.window,
                 losses.mean(), perplexity, perplexity * losses.error()}}});
  print_report(report, options.format);
  return kExitOk;
}

}  // namespace

void add_perplexity(CLI::App& app, Action& action) {
  CLI::App* perplexity =
      app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  auto options = std::make_shared<PerplexityOptions>();
  perplexity->add_option("-f,--file", options->text_path, "file with the text; - is stdin")
      ->required()
      ->option_text("FILE REQUIRED");
  perplexity
      ->add_option("-w,--window", options->window, "tokens per window; windows are independent")
      ->transform(whole_number({2, 1 << 20}))
      ->option_text("N [512]");
  perplexity
      ->add_option("--logits-out", options->logits_path,
                   "write the logits after each token: f32 [tokens, vocabulary]")
      ->option_text("FILE");
  perplexity->add_option("--tokens-out", options->tokens_path, "write the tokens: i32 [tokens]")
      ->option_text("FILE");
  add_session_options(*perplexity, options->session);
  add_model_options(*perplexity, options->model);
  add_format_option(*perplexity, options->format);
  perplexity->callback(
      [&action, options] { action = [options] { return run_perplexity(*options); }; });
}

}  // namespace headrace::cli
