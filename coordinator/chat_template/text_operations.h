// Python's methods of str that filters share with them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "coordinator/chat_template/value.h"

namespace convoy::jinja {

/// str.replace(); `count` absent: all.
Value replace_text(Budget& budget, std::string_view text, std::string_view old,
                   std::string_view with, std::optional<Integer> count);
/// str.splitlines().
std::vector<std::string_view> split_lines(std::string_view text);
/// str.capitalize().
Value capitalize(Budget& budget, std::string_view text);
/// `separator`.join(str(item) for item in items).
Value join_texts(Budget& budget, std::string_view separator, const std::vector<Value>& items);

bool has_text_method(std::string_view name);
/// `name` must be one that has_text_method knows.
struct Arguments;
Value call_text_method(Budget& budget, const std::string& text, std::string_view name,
                       Arguments arguments);

}  // namespace convoy::jinja
