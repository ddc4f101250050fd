// Unicode normalisation form C, of the Unicode version of the ICU that is linked. Hugging Face's
// tokenizers (0.23) knows no combining class for about a hundred marks that are newer than Unicode
// 9 (U+0D3C, for example): it leaves them where they stand, and ids differ where they follow
// another mark out of canonical order.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace convoy {

/// `text` (well-formed UTF-8) in NFC: `text` itself when it is so already, else a view of
/// `storage`, which is overwritten.
Result<std::string_view> to_nfc(std::string_view text, std::string& storage);

}  // namespace convoy
