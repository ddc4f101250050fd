#include "coordinator/console/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <string_view>
#include <utility>

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
  int stop_fd = -1;
  bool stopped = false;
  std::string pending;         // plain lines: what was read and not asked for yet
  EditLine* editor = nullptr;  // null: stdin is no terminal
  History* history = nullptr;

  static State& of(EditLine* editor) {
    State* state = nullptr;
    el_get(editor, EL_CLIENTDATA, &state);
    return *state;
  }
  static char* show_prompt(EditLine* editor) { return of(editor).prompt.data(); }

  // Bytes of stdin; 0: there are no more, or the editor is to stop.
  size_t read_bytes(char* out, size_t size) {
    std::array<pollfd, 2> ready{{{stop_fd, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
    for (;;) {
      if (::poll(ready.data(), ready.size(), -1) < 0) {
        if (errno == EINTR) continue;
        return 0;
      }
      stopped = ready[0].revents != 0;
      if (stopped) return 0;
      const ssize_t count = ::read(STDIN_FILENO, out, size);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR && errno != EAGAIN) return 0;
    }
  }

  // In place of libedit's own, which waits for nothing but input.
  static int read_character(EditLine* editor, wchar_t* out) {
    std::mbstate_t partial{};
    for (char byte = 0; of(editor).read_bytes(&byte, 1) == 1;) {
      const size_t used = std::mbrtowc(out, &byte, 1, &partial);
      if (used == static_cast<size_t>(-1)) {
        partial = {};  // bytes of no character are dropped
      } else if (used != static_cast<size_t>(-2)) {
        return 1;
      }
    }
    return 0;
  }

  std::optional<std::string> read_plain_line() {
    size_t end = 0;
    while ((end = pending.find('\n')) == std::string::npos) {
      std::array<char, 4096> bytes;
      const size_t count = read_bytes(bytes.data(), bytes.size());
      pending.append(bytes.data(), count);
      if (count > 0) continue;
      if (stopped || pending.empty()) return std::nullopt;
      return std::exchange(pending, {});
    }
    std::string line = pending.substr(0, end);
    pending.erase(0, end + 1);
    return line;
  }
};

LineEditor::LineEditor(std::string prompt, int stop_fd) : state_(std::make_unique<State>()) {
  state_->prompt = std::move(prompt);
  state_->stop_fd = stop_fd;
  if (::isatty(STDIN_FILENO) == 0) return;
  use_utf8();
  state_->editor = el_init("convoy", stdin, stdout, stderr);
  if (state_->editor == nullptr) return;
  state_->history = history_init();
  HistEvent event;
  history(state_->history, &event, H_SETSIZE, kHistoryLines);
  el_set(state_->editor, EL_CLIENTDATA, state_.get());
  el_set(state_->editor, EL_PROMPT, &State::show_prompt);
  el_set(state_->editor, EL_GETCFN, &State::read_character);
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
  if (state_->editor == nullptr) return state_->read_plain_line();
  int count = 0;
  const char* text = el_gets(state_->editor, &count);
  if (state_->stopped)
    std::fputs("\n", stdout);  // what comes next does not go on behind the prompt
  if (state_->stopped || text == nullptr || count <= 0) return std::nullopt;
  std::string line(text, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  HistEvent event;
  if (!line.empty()) history(state_->history, &event, H_ENTER, line.c_str());
  return line;
}

}  // namespace convoy
