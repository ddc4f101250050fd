// A parsed template. Owned by Syntax; nodes point at each other within it and never change after
// parsing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/chat_template/builtins.h"
#include "coordinator/chat_template/operators.h"
#include "coordinator/chat_template/value.h"

namespace convoy::jinja {

/// Index into Syntax::names.
using NameId = int;

struct Expression;

struct Keyword {
  std::string name;
  const Expression* value;
};

enum class ExpressionKind {
  constant,     ///< constant
  name,         ///< name
  attribute,    ///< children[0] . text
  item,         ///< children[0] [ children[1] ]
  slice,        ///< children[0] [ children[1] : children[2] : children[3] ], absent ones nullptr
  call,         ///< children[0] ( children[1..], keywords )
  filter,       ///< children[0] | filter ( children[1..], keywords )
  test,         ///< children[0] is test ( children[1..], keywords )
  list,         ///< children
  tuple,        ///< children
  dict,         ///< children: key, value, key, value...
  arithmetic,   ///< children[0] arithmetic children[1]
  comparison,   ///< children[0] comparisons[0] children[1] comparisons[1] children[2]...
  concatenate,  ///< children joined as text
  negate,       ///< - children[0]
  plus,         ///< + children[0]
  not_,         ///< not children[0]
  and_,         ///< children[0] and children[1]
  or_,          ///< children[0] or children[1]
  condition,    ///< children[1] if children[0] else children[2], which may be nullptr
};

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  size_t offset = 0;
  int depth = 1;  ///< bounded, so that evaluation does not exhaust the stack
  NameId name = -1;
  std::string text;
  Value constant;
  FilterId filter = {};
  TestId test = {};
  Arithmetic arithmetic = Arithmetic::add;
  std::vector<Comparison> comparisons;
  std::vector<const Expression*> children;
  std::vector<Keyword> keywords;
};

/// What `set` and `for` assign to.
struct Target {
  size_t offset = 0;
  bool is_tuple = false;
  std::vector<Target> items;  ///< of a tuple
  NameId name = -1;
  std::string attribute;  ///< of a namespace, else empty
};

struct Parameter {
  NameId name;
  const Expression* otherwise;  ///< nullptr: none
};

struct Statement;
using Block = std::vector<const Statement*>;

struct MacroStatement {
  NameId name = -1;  ///< -1 for the body of a call block
  size_t offset = 0;
  std::vector<Parameter> parameters;
  bool uses_caller = false;  ///< whether the body names caller, varargs, kwargs
  bool uses_varargs = false;
  bool uses_kwargs = false;
  Block body;
};

enum class StatementKind {
  data,          ///< text
  output,        ///< value
  if_,           ///< branches; a branch without condition is the else
  for_,          ///< target in value if condition: body, else otherwise
  set,           ///< target = value
  set_block,     ///< target = body through filters
  macro,         ///< macro
  call_block,    ///< value is the call, macro its caller
  filter_block,  ///< body through filters
  with,          ///< targets = values: body
  scope,         ///< body in a scope of its own (generation)
  break_,
  continue_,
};

struct Branch {
  const Expression* condition;
  Block body;
};

struct Statement {
  StatementKind kind = StatementKind::data;
  size_t offset = 0;
  std::string text;
  const Expression* value = nullptr;
  const Expression* condition = nullptr;
  /// Filters applied to a captured body: a chain of filter expressions around captured_text.
  const Expression* filters = nullptr;
  Target target;
  std::vector<std::pair<Target, const Expression*>> assignments;
  std::vector<Branch> branches;
  Block body;
  Block otherwise;
  MacroStatement macro;
};

/// Names that mean something to the renderer; they come first in Syntax::names.
enum KnownName : NameId { kLoop, kCaller, kVarargs, kKwargs, kCapturedText, kKnownNames };

struct Syntax {
  std::vector<std::unique_ptr<const Expression>> expressions;
  std::vector<std::unique_ptr<const Statement>> statements;
  std::vector<std::string> names;
  Block body;
};

}  // namespace convoy::jinja
