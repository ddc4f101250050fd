#include "coordinator/console/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <iostream>
#include <string_view>

namespace convoy {
namespace {

constexpr int kHistoryLines = 1000;

// libedit reads characters in the locale's encoding, and text here is UTF-8.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineEditor::State {
  std::string prompt;
  EditLine* editor = nullptr;  // null: stdin is no terminal
  History* history = nullptr;

  static char* show_prompt(EditLine* editor) {
    State* state = nullptr;
    el_get(editor, EL_CLIENTDATA, &state);
    return state->prompt.data();
  }
};

LineEditor::LineEditor(std::string prompt) : state_(std::make_unique<State>()) {
  state_->prompt = std::move(prompt);
  if (::isatty(STDIN_FILENO) == 0) return;
  use_utf8();
  state_->editor = el_init("convoy", stdin, stdout, stderr);
  if (state_->editor == nullptr) return;
  state_->history = history_init();
  HistEvent event;
  history(state_->history, &event, H_SETSIZE, kHistoryLines);
  el_set(state_->editor, EL_CLIENTDATA, state_.get());
  el_set(state_->editor, EL_PROMPT, &State::show_prompt);
  el_set(state_->editor, EL_EDITOR, "emacs");
  el_set(state_->editor, EL_HIST, history, state_->history);
}

LineEditor::~LineEditor() {
  if (state_->editor != nullptr) el_end(state_->editor);
  if (state_->history != nullptr) history_end(state_->history);
}

bool LineEditor::interactive() const {
  return state_->editor != nullptr;
}

std::optional<std::string> LineEditor::read() {
  std::string line;
  if (state_->editor == nullptr) {
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  int count = 0;
  const char* text = el_gets(state_->editor, &count);
  if (text == nullptr || count <= 0) return std::nullopt;
  line.assign(text, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  HistEvent event;
  if (!line.empty()) history(state_->history, &event, H_ENTER, line.c_str());
  return line;
}

}  // namespace convoy
