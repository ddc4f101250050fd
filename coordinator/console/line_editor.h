// Reads lines a person types, with editing and history where stdin is a terminal.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace convoy {

/// Editing by libedit. Where stdin is no terminal, plain lines without a prompt. Main thread.
/// Nobody else reads stdin meanwhile.
class LineEditor {
 public:
  /// `stop_fd`: when it is readable there is no next line, however much was typed; it outlives the
  /// editor. -1: none.
  LineEditor(std::string prompt, int stop_fd);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// The next line without its end; nothing at the end of input (Ctrl-D), or when asked to stop.
  /// Signals that are handled end no wait.
  std::optional<std::string> read();
  bool interactive() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace convoy
