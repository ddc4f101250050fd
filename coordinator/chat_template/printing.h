// Values as text: str(), repr() and json.dumps() of Python.
#pragma once

#include <string>

#include "coordinator/chat_template/value.h"

namespace convoy::jinja {

std::string integer_text(Integer value);
/// repr(float): the shortest digits that read back as the same number.
std::string real_text(double value);

/// Appends str(value). RenderFailure for values whose text has no meaning (generators, macros).
void append_str(TextBuilder& out, Budget& budget, const Value& value);
/// Appends repr(value).
void append_repr(TextBuilder& out, Budget& budget, const Value& value);

/// str(value) as a value; a text stays itself.
Value to_str(Budget& budget, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< what one level is indented by
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
/// json.dumps(value).
Value to_json(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace convoy::jinja
