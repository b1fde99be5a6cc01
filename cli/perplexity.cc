// headrace perplexity: how well a model predicts a text, token by token.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

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
  std::string kl_cache_type;  // of the dense cache to compare with; empty: none
  std::int64_t window = 512;
  Format format = Format::text;
};

// All in double.
double log_sum_exp(std::span<const float> logits) {
  double largest = -INFINITY, sum = 0;
  for (const float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

// -log softmax(logits)[token].
double loss_of(std::span<const float> logits, std::int32_t token) {
  return log_sum_exp(logits) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

// KL(softmax(reference) || softmax(logits)) in nats.
double divergence_of(std::span<const float> reference, std::span<const float> logits) {
  const double of_reference = log_sum_exp(reference), of_logits = log_sum_exp(logits);
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double log_p = static_cast<double>(reference[i]) - of_reference;
    sum += std::exp(log_p) * (log_p - (static_cast<double>(logits[i]) - of_logits));
  }
  return sum;
}

bool have_one_top(std::span<const float> reference, std::span<const float> logits) {
  const auto top = [](std::span<const float> x) {
    return std::max_element(x.begin(), x.end()) - x.begin();
  };
  return top(reference) == top(logits);
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

// A mean over the predicted tokens.
struct Mean {
  double sum = 0, squares = 0;
  std::int64_t count = 0;

  void add(double value) {
    sum += value;
    squares += value * value;
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

struct Measured {
  Mean loss, divergence, same_top;  // the last two of --kl-against
};

// Writes the logits of every token. With SparQ attention tokens are appended one at a time where it
// computes them: as a decode would see them.
void append(Session& session, const SessionChoice& choice, std::span<const std::int32_t> tokens,
            std::size_t vocab_size, float* logits) {
  std::size_t num_dense = tokens.size();
  if (choice.sparq_keys > 0)
    num_dense = std::min(num_dense, static_cast<std::size_t>(choice.sparq_keys));
  session.append(tokens.first(num_dense), logits);
  for (std::size_t i = num_dense; i < tokens.size(); ++i)
    session.append(tokens.subspan(i, 1), logits + i * vocab_size);
}

Measured measure(const Model& model, const std::vector<std::int32_t>& tokens,
                 const PerplexityOptions& options) {
  const auto vocab_size = static_cast<std::size_t>(model.info().vocab_size);
  const auto window = static_cast<std::size_t>(options.window);
  SessionChoice choice = options.session;
  check_fits(model, choice, options.window, "window (--window)");
  if (choice.context == 0) choice.context = options.window;
  Session session = make_session(model, choice);
  SessionChoice reference_choice = choice;
  reference_choice.cache_type = options.kl_cache_type;
  reference_choice.k_type = reference_choice.v_type = "";
  reference_choice.sparq_components = reference_choice.sparq_keys = 0;
  std::optional<Session> reference;
  if (!options.kl_cache_type.empty()) reference = make_session(model, reference_choice);
  Dump logits_dump(options.logits_path);
  Dump(options.tokens_path).write(std::span<const std::int32_t>(tokens));
  std::vector<float> logits(window * vocab_size);
  std::vector<float> of_reference(reference ? logits.size() : 0);
  Measured measured;
  Progress progress("perplexity");
  for (std::size_t begin = 0; begin < tokens.size(); begin += window) {
    progress.show(begin, tokens.size(),
                  std::to_string(begin) + '/' + std::to_string(tokens.size()) + " tokens");
    const auto part = std::span(tokens).subspan(begin, std::min(window, tokens.size() - begin));
    session.truncate(0);
    append(session, choice, part, vocab_size, logits.data());
    if (reference) {
      reference->truncate(0);
      append(*reference, reference_choice, part, vocab_size, of_reference.data());
    }
    for (std::size_t i = 0; i + 1 < part.size(); ++i) {
      const std::span row(logits.data() + i * vocab_size, vocab_size);
      measured.loss.add(loss_of(row, part[i + 1]));
      if (!reference) continue;
      const std::span reference_row(of_reference.data() + i * vocab_size, vocab_size);
      measured.divergence.add(divergence_of(reference_row, row));
      measured.same_top.add(have_one_top(reference_row, row));
    }
    logits_dump.write(std::span<const float>(logits.data(), part.size() * vocab_size));
  }
  progress.clear();
  return measured;
}

int run_perplexity(const PerplexityOptions& options) {
  const Model model = load_model(options.model);
  const std::vector<std::int32_t> tokens = model.tokenize(read_text(options.text_path));
  if (tokens.size() < 2)
    throw Error(HEADRACE_INVALID_ARGUMENT, options.text_path + ": " +
                                               std::to_string(tokens.size()) +
                                               " tokens; pass a text of at least 2");
  const Measured measured = measure(model, tokens, options);
  const Mean &loss = measured.loss, &divergence = measured.divergence;
  if (!std::isfinite(loss.mean())) fail_of_damaged_weights();
  const double perplexity = std::exp(loss.mean());
  const auto if_compared = [&](double value) {
    return options.kl_cache_type.empty() ? Cell{} : Cell{value};
  };
  Report report;
  report.tables.push_back(
      {.key = "perplexity",
       .columns = {{"tokens", "tokens"},
                   {"predicted", "predicted"},
                   {"window", "window"},
                   {"nats_per_token", "nats/token", 5},
                   {"perplexity", "perplexity", 4},
                   {"standard_error", "+-", 4},
                   {"kl", "KL", 5},
                   {"kl_standard_error", "KL +-", 5},
                   {"same_top", "same top", 4}},
       .rows = {{static_cast<std::int64_t>(tokens.size()), loss.count, options.window, loss.mean(),
                 perplexity, perplexity * loss.error(), if_compared(divergence.mean()),
                 if_compared(divergence.error()), if_compared(measured.same_top.mean())}}});
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
  perplexity
      ->add_option("--kl-against", options->kl_cache_type,
                   "also the KL divergence from dense attention and a cache of this type")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->option_text("f16|bf16|f32");
  perplexity->add_option("--tokens-out", options->tokens_path, "write the tokens: i32 [tokens]")
      ->option_text("FILE");
  add_session_options(*perplexity, options->session);
  add_sparq_options(*perplexity, options->session);
  add_model_options(*perplexity, options->model);
  add_format_option(*perplexity, options->format);
  perplexity->callback(
      [&action, options] { action = [options] { return run_perplexity(*options); }; });
}

}  // namespace headrace::cli
