#include "coordinator/chat_template/chat_template.h"

#include <fmt/format.h>

#include "coordinator/chat_template/parser.h"
#include "coordinator/chat_template/renderer.h"

namespace convoy {

struct ChatTemplate::State {
  jinja::Source source;
  jinja::Syntax syntax;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::parse(std::string source, std::string name) {
  jinja::Source text(std::move(source), std::move(name));
  jinja::Syntax syntax = jinja::parse(text);
  return ChatTemplate(std::make_unique<const State>(State{std::move(text), std::move(syntax)}));
}

Result<std::string> ChatTemplate::render(const boost::json::object& context,
                                         const RenderOptions& options) const {
  jinja::Budget budget(options.limits);
  jinja::Renderer renderer(state_->syntax, budget, options);
  try {
    return renderer.run(context);
  } catch (const jinja::RenderFailure& failure) {
    return Error{fmt::format("{}: {}", state_->source.place(renderer.offset()), failure.message)};
  }
}

}  // namespace convoy
