#include "coordinator/text/normalizer.h"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include "coordinator/text/utf8.h"

namespace convoy {

Result<std::string_view> to_nfc(std::string_view text, std::string& storage) {
  if (is_ascii(text)) return text;
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  if (U_SUCCESS(error)) {
    const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
    if (nfc->isNormalizedUTF8(piece, error) && U_SUCCESS(error)) return text;
    storage.clear();
    storage.reserve(text.size());
    icu::StringByteSink<std::string> sink(&storage);
    nfc->normalizeUTF8(0, piece, sink, nullptr, error);
  }
  if (U_FAILURE(error)) {
    return Error{
        fmt::format("NFC normalisation of {} bytes failed: {}", text.size(), u_errorName(error))};
  }
  return std::string_view(storage);
}

}  // namespace convoy
