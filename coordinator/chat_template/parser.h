// A template's source as a tree.
#pragma once

#include "coordinator/chat_template/ast.h"
#include "coordinator/chat_template/lexer.h"

namespace convoy::jinja {

/// StartError with line and column for syntax errors, for constructs of Jinja that are not
/// supported, and for nesting beyond kMaxParseDepth.
Syntax parse(const Source& source);

/// Nested statements and brackets; also levels of an expression's tree ("a + b + c" has two).
inline constexpr int kMaxParseDepth = 150;

}  // namespace convoy::jinja
