// Line editing with libedit (histedit.h).
#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <utility>

#include "command.h"
#include "headrace/headrace.hpp"
#include "history.h"
#include "interrupt.h"
#include "line_reader.h"

namespace headrace::cli {
namespace {

// libedit's own reader ignores Ctrl-C.
int read_character(EditLine*, wchar_t* character) {
  std::mbstate_t state{};
  for (;;) {
    char byte = 0;
    if (!wait_for_input()) return -1;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count <= 0) return static_cast<int>(count);
    const std::size_t used = std::mbrtowc(character, &byte, 1, &state);
    if (used <= 1) return 1;
    if (used == static_cast<std::size_t>(-1)) state = {};  // invalid in this locale
  }
}

char* prompt(EditLine*) {
  static char text[] = "> ";
  return text;
}

struct EndEditing {
  void operator()(EditLine* editor) const { el_end(editor); }
};
struct EndHistory {
  void operator()(::History* history) const { history_end(history); }
};

// An unusable history file is a note, not an error: the chat starts anyway.
History open_history(const std::string& path) {
  try {
    return History(path);
  } catch (const Error& error) {
    print_note(std::string("no history: ") + error.what());
    return History("");
  }
}

class LineEditor : public LineReader {
 public:
  explicit LineEditor(History kept) : kept_(std::move(kept)), shown_(history_init()) {
    // Multi-byte characters need a UTF-8 locale.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1)
      std::setlocale(LC_CTYPE, "C.UTF-8");
    editor_.reset(el_init("headrace", stdin, stderr, stderr));
    HistEvent event;
    ::history(shown_.get(), &event, H_SETSIZE, static_cast<int>(History::kMaxLines));
    for (const std::string& line : kept_.lines())
      ::history(shown_.get(), &event, H_ENTER, line.c_str());
    el_set(editor_.get(), EL_EDITOR, "emacs");
    el_set(editor_.get(), EL_PROMPT, prompt);
    el_set(editor_.get(), EL_HIST, ::history, shown_.get());
    el_set(editor_.get(), EL_GETCFN, read_character);
    el_set(editor_.get(), EL_BIND, "^R", "em-inc-search-prev", nullptr);
    // Ctrl-D typed before the terminal left canonical mode arrives as NUL.
    el_set(editor_.get(), EL_BIND, "^@", "em-delete-or-list", nullptr);
    el_source(editor_.get(), nullptr);  // ~/.editrc, if there is one
  }

  bool read(std::string& line) override {
    el_resize(editor_.get());
    el_set(editor_.get(), EL_PREP_TERM, 1);  // before the prompt appears
    int count = 0;
    const char* text = el_gets(editor_.get(), &count);
    if (text == nullptr || count <= 0) return false;
    line.assign(text, static_cast<std::size_t>(count));
    if (line.back() == '\n') line.pop_back();
    HistEvent event;
    if (!line.empty()) ::history(shown_.get(), &event, H_ENTER, line.c_str());
    kept_.add(line);
    return true;
  }

 private:
  History kept_;
  std::unique_ptr<::History, EndHistory> shown_;
  std::unique_ptr<EditLine, EndEditing> editor_;
};

}  // namespace

std::unique_ptr<LineReader> make_line_editor(const std::string& history_path) {
  return std::make_unique<LineEditor>(open_history(history_path));
}

const char* line_editing_text() { return "libedit"; }

}  // namespace headrace::cli
