// Errors that are expected while serving (peer gone, bad frame, refused request) are values, never
// exceptions.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace convoy {

/// What went wrong, in one line a person can act on: what, where, which value, what was allowed.
struct Error {
  std::string message;
};

/// A value or an Error. Reading the side that is not there ends the process (std::get throws
/// bad_variant_access).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor): reads as a return value
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const std::string& error() const { return std::get<1>(state_).message; }

 private:
  std::variant<T, Error> state_;
};

/// The result of an action without a value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error)
      : message_(std::move(error.message)), failed_(true) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const std::string& error() const { return message_; }

 private:
  std::string message_;
  bool failed_ = false;
};

}  // namespace convoy
