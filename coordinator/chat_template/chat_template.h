// Chat templates: Jinja as far as Hugging Face checkpoints use it. README.md says what is
// supported.
#pragma once

#include <boost/json/object.hpp>
#include <memory>
#include <string>

#include "base/result.h"
#include "coordinator/chat_template/render_options.h"

namespace convoy {

/// A parsed template. Immutable; render may be called from several threads at once. Moved-from:
/// only to be destroyed or assigned to.
class ChatTemplate {
 public:
  /// `name` is what messages call the template, usually a path. Throws StartError "<name>: line 3,
  /// column 7: ..." for syntax errors, for constructs of Jinja that are not supported, for text
  /// that is no UTF-8, and for templates of more than 1 MiB or nested too deeply.
  static ChatTemplate parse(std::string source, std::string name);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// The text for the variables in `context` (messages, tools, add_generation_prompt,
  /// enable_thinking, bos_token...), byte for byte what jinja2 makes of them with Hugging Face's
  /// settings. Nothing is added to `context`. The error is "<name>: line 3, column 7: ..." with the
  /// template's own words where it called raise_exception.
  Result<std::string> render(const boost::json::object& context,
                             const RenderOptions& options = {}) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<const State> state);

  std::unique_ptr<const State> state_;
};

}  // namespace convoy
