// Broken invariants. A check is on in every build: it logs what was expected and ends the process
// by abort(). Use it for our own mistakes only; bad input is an error value or an exception.
#pragma once

#include <concepts>
#include <sstream>
#include <string>
#include <string_view>

namespace convoy {

/// Logs `message` with the source position at level error and aborts. `file` is shortened to its
/// last two parts.
[[noreturn]] void check_failed(const char* file, int line, std::string_view message);

namespace detail {
template <typename A, typename B>
[[noreturn]] void check_op_failed(const char* file, int line, const char* text, const A& a,
                                  const B& b) {
  std::ostringstream out;
  out << text << " (" << a << " vs " << b << ")";
  check_failed(file, line, out.str());
}
}  // namespace detail

}  // namespace convoy

#define CONVOY_CHECK(condition, message)                                                      \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::convoy::check_failed(__FILE__, __LINE__, std::string(#condition) + ": " + (message)); \
  } while (false)

// Both values appear in the message. `op` is a comparison operator.
#define CONVOY_CHECK_OP(a, op, b)                                                        \
  do {                                                                                   \
    const auto& check_a_ = (a);                                                          \
    const auto& check_b_ = (b);                                                          \
    if (!(check_a_ op check_b_)) [[unlikely]]                                            \
      ::convoy::detail::check_op_failed(__FILE__, __LINE__, #a " " #op " " #b, check_a_, \
                                        check_b_);                                       \
  } while (false)
