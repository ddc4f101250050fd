// Keeps the text of messages from becoming control tokens when a template has put it between its
// own markers.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "coordinator/text/tokenizer.h"

namespace convoy {

/// One conversation's rendering. A control token that is written in a message ("<|im_end|>" typed
/// by a user), and the beginning of one at the end of a string, which the template may join with
/// the next, gets a character inside that no text uses, so that neither the template nor the
/// search for control tokens takes it for one; encode() takes the character out again. The ids of
/// such text are those of Tokenizer::encode(text, false).
class MessageGuard {
 public:
  explicit MessageGuard(const Tokenizer& tokenizer);

  /// Guards every string of `context`, keys included: templates print those of tools and calls.
  /// Keys that they look up hold nothing to guard. Error: the strings use every guard character
  /// there is (U+FDD0 to U+FDEF, which are no characters).
  Result<boost::json::object> protect(const boost::json::object& context);

  /// Ids of what the template made of a protected context.
  Result<std::vector<int32_t>> encode(std::string_view rendered) const;

 private:
  void protect_value(boost::json::value& value) const;
  std::string protect_text(std::string_view text) const;

  const Tokenizer& tokenizer_;
  std::vector<std::string> control_;  // longest first
  std::string guard_;
};

}  // namespace convoy
