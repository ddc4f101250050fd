#include "coordinator/chat_template/renderer.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/chat_template/printing.h"

namespace convoy::jinja {

void Scope::set(NameId name, Value value) {
  for (auto& [present, variable] : variables_) {
    if (present != name) continue;
    variable = std::move(value);
    return;
  }
  variables_.emplace_back(name, std::move(value));
}

const Value* Scope::find(Budget& budget, NameId name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
    budget.step(1 + scope->variables_.size() / 16);
    for (const auto& [present, variable] : scope->variables_) {
      if (present == name) return &variable;
    }
  }
  return nullptr;
}

std::string Renderer::run(const boost::json::object& context) {
  Scope scope(nullptr);
  for (const auto& entry : context) {
    const auto name = std::find(syntax_.names.begin() + kKnownNames, syntax_.names.end(),
                                std::string_view(entry.key()));
    if (name == syntax_.names.end()) continue;
    scope.set(static_cast<NameId>(name - syntax_.names.begin()), from_json(entry.value()));
  }
  const Inside inside(*this, scope);
  TextBuilder page(budget_);
  page_ = out_ = &page;
  execute(syntax_.body);
  return std::move(page).take_text();
}

void Renderer::write(std::string_view text) {
  if (out_ == page_ && text.size() > budget_.limits().max_output_bytes -
                                         std::min(budget_.limits().max_output_bytes, page_->size()))
    throw RenderFailure{
        fmt::format("the rendered text has more than {} bytes", budget_.limits().max_output_bytes)};
  out_->append(text);
}

void Renderer::write_value(const Value& value) {
  if (const std::string* text = value.text()) return write(*text);
  if (value.is_undefined()) return;
  const Value shown = to_str(budget_, value);
  write(*shown.text());
}

Renderer::Flow Renderer::execute(const Block& block) {
  const DepthGuard guard(budget_);
  for (const Statement* statement : block) {
    const Flow flow = execute(*statement);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Renderer::Flow Renderer::execute(const Statement& statement) {
  budget_.step();
  offset_ = statement.offset;
  switch (statement.kind) {
    case StatementKind::data:
      write(statement.text);
      return Flow::normal;
    case StatementKind::output: {
      const Value value = evaluate(*statement.value);
      offset_ = statement.offset;
      write_value(value);
      return Flow::normal;
    }
    case StatementKind::if_:
      return execute_if(statement);
    case StatementKind::for_:
      return execute_for(statement);
    case StatementKind::set:
      assign(statement.target, evaluate(*statement.value));
      return Flow::normal;
    case StatementKind::set_block:
      assign(statement.target, capture(statement.body, statement.filters));
      return Flow::normal;
    case StatementKind::macro:
      scope_->set(statement.macro.name,
                  Value(std::make_shared<const Macro>(Macro{&statement.macro, scope_})));
      return Flow::normal;
    case StatementKind::call_block:
      execute_call_block(statement);
      return Flow::normal;
    case StatementKind::filter_block:
      write_value(capture(statement.body, statement.filters));
      return Flow::normal;
    case StatementKind::with:
      return execute_with(statement);
    case StatementKind::scope:
      return execute_in_scope(statement.body);
    case StatementKind::break_:
      return Flow::break_;
    case StatementKind::continue_:
      return Flow::continue_;
  }
  return Flow::normal;
}

Renderer::Flow Renderer::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition == nullptr || truth(evaluate(*branch.condition)))
      return execute(branch.body);
  }
  return Flow::normal;
}

std::vector<Value> Renderer::items_of(const Statement& loop) {
  const Value iterable = evaluate(*loop.value);
  offset_ = loop.value->offset;
  auto items = iterate(budget_, iterable);
  if (loop.condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    Scope scope(scope_);
    const Inside inside(*this, scope);
    assign(loop.target, item);
    if (truth(evaluate(*loop.condition))) kept.push_back(std::move(item));
  }
  return kept;
}

Renderer::Flow Renderer::execute_for(const Statement& statement) {
  const auto items = items_of(statement);
  const MemoryCharge charge(budget_, items.size() * sizeof(Value));
  LoopState loop;
  loop.items = &items;
  bool reached_end = false;
  for (; loop.index0 < items.size(); ++loop.index0) {
    budget_.step();
    Scope scope(scope_);
    const Inside inside(*this, scope);
    scope.set(kLoop, Value(static_cast<const LoopState*>(&loop)));
    offset_ = statement.target.offset;
    assign(statement.target, items[loop.index0]);
    const Flow flow = execute(statement.body);
    if (flow == Flow::break_) break;
    reached_end |= flow == Flow::normal;
  }
  // Jinja's rule: the else is for loops of which no pass came to its end, be it for want of items.
  return reached_end ? Flow::normal : execute_in_scope(statement.otherwise);
}

Renderer::Flow Renderer::execute_with(const Statement& statement) {
  Scope scope(scope_);
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.assignments)
    values.push_back(evaluate(*expression));
  const Inside inside(*this, scope);
  for (size_t i = 0; i < values.size(); ++i)
    assign(statement.assignments[i].first, std::move(values[i]));
  return execute(statement.body);
}

Renderer::Flow Renderer::execute_in_scope(const Block& block) {
  Scope scope(scope_);
  const Inside inside(*this, scope);
  return execute(block);
}

void Renderer::execute_call_block(const Statement& statement) {
  const Expression& expression = *statement.value;
  const Value callee = evaluate(*expression.children[0]);
  Arguments arguments = evaluate_arguments(expression);
  arguments.named.emplace_back(
      "caller", Value(std::make_shared<const Macro>(Macro{&statement.macro, scope_})));
  offset_ = expression.offset;
  write_value(call(callee, std::move(arguments)));
}

Value Renderer::capture(const Block& block, const Expression* filters) {
  TextBuilder captured(budget_);
  TextBuilder* outer = std::exchange(out_, &captured);
  execute_in_scope(block);
  out_ = outer;
  Value text = make_text(std::move(captured), budget_);
  if (filters == nullptr) return text;
  Scope scope(scope_);
  const Inside inside(*this, scope);
  scope.set(kCapturedText, std::move(text));
  return evaluate(*filters);
}

void Renderer::assign(const Target& target, Value value) {
  if (target.is_tuple) {
    offset_ = target.offset;
    auto items = iterate(budget_, value);
    if (items.size() != target.items.size()) {
      throw RenderFailure{
          fmt::format("{} values are assigned to {} names", items.size(), target.items.size())};
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], std::move(items[i]));
    return;
  }
  if (target.attribute.empty()) return scope_->set(target.name, std::move(value));
  offset_ = target.offset;
  const Value* owner = scope_->find(budget_, target.name);
  const auto* space = owner != nullptr ? owner->as<NamespacePointer>() : nullptr;
  if (space == nullptr) throw RenderFailure{"only attributes of a namespace can be assigned to"};
  set_attribute(budget_, **space, target.attribute, std::move(value));
}

}  // namespace convoy::jinja
