// headrace chat: a conversation in a terminal. Ctrl-C stops the answer, not the program.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>

#include "answer.h"
#include "command.h"
#include "model_options.h"

namespace headrace::cli {
namespace {

struct ChatOptions {
  ModelChoice model;
  SessionChoice session;
  GenerationChoice generation;
  std::string system, template_name;
};

constexpr const char* kHelp =
    "/reset  forget the conversation\n"
    "/undo   forget the last question and its answer\n"
    "/again  answer the last question once more\n"
    "/exit   leave (or Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

std::atomic<bool> g_is_interrupted{false};

// Without SA_RESTART, so that a read of the terminal ends too.
void catch_interrupts() {
  struct sigaction handler {};
  handler.sa_handler = [](int) { g_is_interrupted = true; };
  sigemptyset(&handler.sa_mask);
  sigaction(SIGINT, &handler, nullptr);
}

class Chat {
 public:
  explicit Chat(const ChatOptions& options)
      : options_(options),
        generation_(generation_options(options.generation)),
        model_(load_model(options.model)),
        session_(make_session(model_, options.session)) {
    if (!options.system.empty()) messages_.push_back({"system", options.system});
    num_fixed_ = messages_.size();
    static_cast<void>(tokens());  // an unknown template is better said now
  }

  void run() {
    for (;;) {
      const std::optional<std::string> line = read_line();
      if (!line || *line == "/exit") return;
      if (line->empty()) continue;
      if (line->front() == '/')
        command(*line);
      else
        ask(*line);
    }
  }

 private:
  // Empty: the end of the input, or Ctrl-C at an empty line twice.
  std::optional<std::string> read_line() {
    static const bool is_terminal = isatty(STDIN_FILENO) != 0;
    for (int interrupts = 0; interrupts < 2;) {
      if (is_terminal) std::cerr << "> " << std::flush;
      std::string line;
      g_is_interrupted = false;
      if (std::getline(std::cin, line)) return line;
      std::cin.clear();
      clearerr(stdin);
      if (!g_is_interrupted) break;
      ++interrupts;
      std::cerr << "\n(Ctrl-C once more, /exit or Ctrl-D leaves)\n";
    }
    if (is_terminal) std::cerr << '\n';
    return std::nullopt;
  }

  void command(const std::string& line) {
    if (line == "/help") {
      std::cerr << kHelp;
    } else if (line == "/reset") {
      messages_.resize(num_fixed_);
    } else if (line == "/undo" || line == "/again") {
      if (messages_.size() < num_fixed_ + 2) {
        print_note("there is no question yet");
        return;
      }
      const std::string question = messages_[messages_.size() - 2].content;
      messages_.resize(messages_.size() - 2);
      if (line == "/again") ask(question);
    } else {
      print_note(line + ": no such command; /help lists them");
    }
  }

  std::vector<std::int32_t> tokens() const {
    std::vector<Message> messages = messages_;
    if (messages.size() == num_fixed_) messages.push_back({"user", "."});
    return model_.chat_tokens(messages, options_.template_name);
  }

  // What the session has of the conversation already is not computed again.
  void ask(const std::string& question) {
    messages_.push_back({"user", question});
    try {
      const std::vector<std::int32_t> all = tokens();
      const std::span<const std::int32_t> known(computed_);
      const auto same = static_cast<std::size_t>(
          std::mismatch(all.begin(), all.end() - 1, known.begin(), known.end()).first -
          all.begin());
      session_.truncate(static_cast<std::int64_t>(same));
      computed_.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(same));
      g_is_interrupted = false;
      const Answer answer = stream_answer(session_, std::span(all).subspan(same), generation_,
                                          [] { return !g_is_interrupted; });
      computed_ = all;  // of the answer only what the template makes of it is known next time
      std::cout << '\n' << std::flush;
      print_note(speed_text(answer));
      messages_.push_back({"assistant", answer.text});
    } catch (const Error& error) {
      // Nothing of this question stays.
      messages_.pop_back();
      print_note(error.what());
    }
  }

  const ChatOptions& options_;
  GenerationOptions generation_;
  Model model_;
  Session session_;
  std::vector<Message> messages_;
  std::size_t num_fixed_ = 0;
  std::vector<std::int32_t> computed_;  // the first tokens of the session
};

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  CLI::App* chat = app.add_subcommand("chat", "Talk with a model; /help inside lists commands");
  auto options = std::make_shared<ChatOptions>();
  chat->add_option("-s,--system", options->system, "what the model is told first")
      ->option_text("TEXT");
  chat->add_option("--template", options->template_name,
                   "chat template, where the file's own is not known")
      ->option_text("NAME");
  add_generation_options(*chat, options->generation);
  add_session_options(*chat, options->session);
  add_model_options(*chat, options->model);
  chat->callback([&action, options] {
    action = [options] {
      catch_interrupts();
      Chat(*options).run();
      return kExitOk;
    };
  });
}

}  // namespace headrace::cli
