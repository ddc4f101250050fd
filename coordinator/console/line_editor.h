// Reads lines a person types, with editing and history where stdin is a terminal.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace convoy {

/// Editing by libedit. Where stdin is no terminal, plain lines without a prompt. Main thread.
class LineEditor {
 public:
  explicit LineEditor(std::string prompt);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// The next line without its end; nothing at the end of input (Ctrl-D).
  std::optional<std::string> read();
  bool interactive() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace convoy
