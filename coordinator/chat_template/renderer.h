// Runs a parsed template.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/chat_template/ast.h"
#include "coordinator/chat_template/render_options.h"

namespace convoy::jinja {

/// Variables of one block; those of the blocks around it are seen through it. Assignments stay
/// within.
class Scope {
 public:
  explicit Scope(Scope* parent) : parent_(parent) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void set(NameId name, Value value);
  /// nullptr when neither this scope nor one around it has the name.
  const Value* find(Budget& budget, NameId name) const;

 private:
  Scope* parent_;
  std::vector<std::pair<NameId, Value>> variables_;
};

/// One rendering. Throws RenderFailure; offset() then tells where.
class Renderer {
 public:
  Renderer(const Syntax& syntax, Budget& budget, const RenderOptions& options)
      : syntax_(syntax), budget_(budget), options_(options) {}

  std::string run(const boost::json::object& context);
  size_t offset() const { return offset_; }

 private:
  enum class Flow { normal, break_, continue_ };

  // Statements (renderer.cpp).
  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow execute_if(const Statement& statement);
  Flow execute_for(const Statement& statement);
  Flow execute_with(const Statement& statement);
  Flow execute_in_scope(const Block& block);
  void execute_call_block(const Statement& statement);
  std::vector<Value> items_of(const Statement& loop);
  void assign(const Target& target, Value value);
  /// Renders a block on its own, in a scope of its own, and applies the filters (nullptr: none).
  Value capture(const Block& block, const Expression* filters);
  void write(std::string_view text);
  void write_value(const Value& value);

  // Expressions (evaluation.cpp).
  Value evaluate(const Expression& expression);
  Value evaluate_name(const Expression& expression);
  Value evaluate_attribute(const Expression& expression);
  Value evaluate_item(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_filter(const Expression& expression);
  Value evaluate_test(const Expression& expression);
  Value evaluate_sequence(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_arithmetic(const Expression& expression);
  Value evaluate_comparison(const Expression& expression);
  Value evaluate_concatenation(const Expression& expression);
  Value evaluate_choice(const Expression& expression);
  Arguments evaluate_arguments(const Expression& expression);
  Value call(const Value& callee, Arguments arguments);
  Value call_macro(const Macro& macro, Arguments arguments);
  void bind_parameters(const MacroStatement& macro, Arguments& arguments, Scope& scope);

  const Syntax& syntax_;
  Budget& budget_;
  const RenderOptions& options_;
  Scope* scope_ = nullptr;
  TextBuilder* out_ = nullptr;
  const TextBuilder* page_ = nullptr;  // the output itself, as opposed to a captured part
  size_t offset_ = 0;

  // Makes a scope the current one while it exists.
  class Inside {
   public:
    Inside(Renderer& renderer, Scope& scope)
        : renderer_(renderer), outer_(std::exchange(renderer.scope_, &scope)) {}
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { renderer_.scope_ = outer_; }

   private:
    Renderer& renderer_;
    Scope* outer_;
  };
};

}  // namespace convoy::jinja
