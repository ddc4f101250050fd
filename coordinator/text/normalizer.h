// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace convoy {

/// `text` (well-formed UTF-8) in NFC: `text` itself when it is so already, else a view of
/// `storage`, which is overwritten.
Result<std::string_view> to_nfc(std::string_view text, std::string& storage);

}  // namespace convoy
