// headrace chat: a conversation in a terminal. Ctrl-C stops the answer, not the program.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "answer.h"
#include "command.h"
#include "history.h"
#include "interrupt.h"
#include "line_reader.h"
#include "model_options.h"

namespace headrace::cli {
namespace {

struct ChatOptions {
  ModelChoice model;
  SessionChoice session;
  GenerationChoice generation;
  std::string system, template_name;
  bool has_no_history = false;
};

constexpr const char* kHelp =
    "/reset  start a new conversation\n"
    "/undo   remove the last question and its answer\n"
    "/again  answer the last question again\n"
    "/exit   leave (or Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

class Chat {
 public:
  explicit Chat(const ChatOptions& options)
      : options_(options),
        generation_(generation_options(options.generation)),
        model_(load_model(options.model)),
        session_(make_session(model_, options.session)),
        lines_(make_line_reader(options.has_no_history ? "" : history_path())) {
    if (!options.system.empty()) messages_.push_back({"system", options.system});
    num_fixed_ = messages_.size();
    static_cast<void>(tokens());  // fails early if the template is unknown
  }

  // For scripts the exit code reports an unanswered question; a terminal user sees the note.
  int run() {
    for (;;) {
      const std::optional<std::string> line = read_line();
      if (!line || *line == "/exit")
        return has_unanswered_ && !is_terminal_ ? kExitFailure : kExitOk;
      if (line->empty()) continue;
      if (line->front() == '/')
        command(*line);
      else
        ask(*line);
    }
  }

 private:
  // Empty: end of input, or Ctrl-C twice at an empty line.
  std::optional<std::string> read_line() {
    for (int interrupts = 0; interrupts < 2;) {
      std::string line;
      clear_interrupt();
      if (lines_->read(line)) return line;
      if (!is_interrupted()) break;
      ++interrupts;
      std::cerr << "\n(Ctrl-C again, /exit or Ctrl-D to leave)\n";
    }
    if (is_terminal_) std::cerr << '\n';
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
      const std::vector<Message> turn(messages_.end() - 2, messages_.end());
      messages_.resize(messages_.size() - 2);
      if (line == "/again" && !ask(turn[0].content))
        messages_.insert(messages_.end(), turn.begin(), turn.end());
    } else {
      print_note(line + ": no such command; /help lists them");
    }
  }

  std::vector<std::int32_t> tokens() const {
    std::vector<Message> messages = messages_;
    if (messages.size() == num_fixed_) messages.push_back({"user", "."});
    return model_.chat_tokens(messages, options_.template_name);
  }

  // Keeps the common prefix with the session's tokens and computes only the rest. False: the
  // question was dropped.
  bool ask(const std::string& question) {
    messages_.push_back({"user", question});
    try {
      const std::vector<std::int32_t> all = tokens();
      check_fits(model_, options_.session, static_cast<std::int64_t>(all.size()), "conversation");
      const std::span<const std::int32_t> known(computed_);
      const auto same = static_cast<std::size_t>(
          std::mismatch(all.begin(), all.end() - 1, known.begin(), known.end()).first -
          all.begin());
      session_.truncate(static_cast<std::int64_t>(same));
      computed_.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(same));
      clear_interrupt();
      const Answer answer = stream_answer(model_, session_, std::span(all).subspan(same),
                                          generation_, [] { return !is_interrupted(); });
      computed_ = all;  // without the answer: the next prompt holds the template's form of it
      std::cout << '\n' << std::flush;
      print_note(speed_text(answer));
      messages_.push_back({"assistant", answer.text});
      return true;
    } catch (const Error& error) {
      // Drop the question.
      messages_.pop_back();
      if (error.code() != HEADRACE_INVALID_ARGUMENT) throw;
      has_unanswered_ = true;
      print_note(error.what());
      return false;
    }
  }

  const ChatOptions& options_;
  GenerationOptions generation_;
  Model model_;
  Session session_;
  std::unique_ptr<LineReader> lines_;
  const bool is_terminal_ = isatty(STDIN_FILENO) != 0;
  bool has_unanswered_ = false;
  std::vector<Message> messages_;
  std::size_t num_fixed_ = 0;
  std::vector<std::int32_t> computed_;  // prefix of the session's tokens
};

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  CLI::App* chat = app.add_subcommand("chat", "Chat with a model; type /help for its commands");
  auto options = std::make_shared<ChatOptions>();
  chat->add_option("-s,--system,--system-prompt", options->system, "system prompt")
      ->option_text("TEXT");
  chat->add_option("--template,--chat-template", options->template_name,
                   "chat template to use instead of the file's own")
      ->option_text("NAME");
  chat->add_flag("--no-history", options->has_no_history,
                 "neither read nor write the history of typed lines");
  add_generation_options(*chat, options->generation);
  add_session_options(*chat, options->session);
  add_sparq_options(*chat, options->session);
  add_model_options(*chat, options->model);
  chat->callback([&action, options] {
    action = [options] {
      catch_interrupts();
      return Chat(*options).run();
    };
  });
}

}  // namespace headrace::cli
