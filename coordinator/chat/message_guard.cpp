#include "coordinator/chat/message_guard.h"

#include <algorithm>

namespace convoy {
namespace {

constexpr unsigned kFirstGuard = 0xFDD0;
constexpr unsigned kLastGuard = 0xFDEF;

std::string utf8_of(unsigned code_point) {
  return {static_cast<char>(0xE0 | (code_point >> 12)),
          static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

// Whether any string of `value`, keys included, holds `needle`.
bool contains(const boost::json::value& value, std::string_view needle) {
  if (const auto* text = value.if_string())
    return std::string_view(*text).find(needle) != std::string_view::npos;
  if (const auto* list = value.if_array()) {
    return std::any_of(list->begin(), list->end(),
                       [&](const auto& item) { return contains(item, needle); });
  }
  if (const auto* object = value.if_object()) {
    return std::any_of(object->begin(), object->end(), [&](const auto& item) {
      return std::string_view(item.key()).find(needle) != std::string_view::npos ||
             contains(item.value(), needle);
    });
  }
  return false;
}

std::string_view without_trailing_space(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

size_t first_character_bytes(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) ++bytes;
  return bytes;
}

}  // namespace

MessageGuard::MessageGuard(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), control_(tokenizer.added_token_contents()) {
  std::sort(control_.begin(), control_.end(),
            [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

Result<boost::json::object> MessageGuard::protect(const boost::json::object& context) {
  unsigned candidate = kFirstGuard;
  while (candidate <= kLastGuard && contains(context, utf8_of(candidate))) ++candidate;
  if (candidate > kLastGuard)
    return Error{"the messages use every character from U+FDD0 to U+FDEF"};
  guard_ = utf8_of(candidate);
  boost::json::value copy = context;
  protect_value(copy);
  return std::move(copy.as_object());
}

void MessageGuard::protect_value(boost::json::value& value) const {
  if (auto* text = value.if_string()) {
    *text = protect_text(*text);
  } else if (auto* list = value.if_array()) {
    for (auto& item : *list) protect_value(item);
  } else if (auto* object = value.if_object()) {
    boost::json::object guarded(object->storage());
    guarded.reserve(object->size());
    for (auto& item : *object) {
      protect_value(item.value());
      guarded.emplace(protect_text(item.key()), std::move(item.value()));
    }
    *object = std::move(guarded);
  }
}

std::string MessageGuard::protect_text(std::string_view text) const {
  std::string out;
  const size_t trimmed_size = without_trailing_space(text).size();
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    // What the template puts behind this string may be the rest of a token, and it may trim the
    // string before. Space alone begins none: the guard would keep it from being trimmed.
    const bool begins_token = std::any_of(control_.begin(), control_.end(), [&](const auto& token) {
      return rest.starts_with(token) ||
             (at < trimmed_size &&
              (token.starts_with(rest) || token.starts_with(text.substr(at, trimmed_size - at))));
    });
    const size_t bytes = first_character_bytes(rest);
    out.append(rest.substr(0, bytes));
    if (begins_token) out.append(guard_);
    at += bytes;
  }
  return out;
}

Result<std::vector<int32_t>> MessageGuard::encode(std::string_view rendered) const {
  std::vector<int32_t> ids;
  for (const TextPart& part : tokenizer_.split_added_tokens(rendered)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    std::string text(part.text);
    for (size_t at = text.find(guard_); !guard_.empty() && at != std::string::npos;
         at = text.find(guard_, at))
      text.erase(at, guard_.size());
    auto encoded = tokenizer_.encode(text, false);
    if (!encoded) return Error{encoded.error()};
    ids.insert(ids.end(), encoded.value().begin(), encoded.value().end());
  }
  return ids;
}

}  // namespace convoy
