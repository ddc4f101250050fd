// libFuzzer target of the tokenizer and the text stream. Input: tokenizer.json, 0xFF, a text, and
// optionally 0xFF and a tokenizer_config.json (0xFF occurs in no valid UTF-8).
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/exit_code.h"
#include "coordinator/text/normalizer.h"
#include "coordinator/text/text_stream.h"
#include "coordinator/text/tokenizer.h"

namespace {

std::string_view take_part(std::string_view& input) {
  const size_t end = input.find('\xFF');
  const auto part = input.substr(0, end);
  input.remove_prefix(end == std::string_view::npos ? input.size() : end + 1);
  return part;
}

void check_text(const convoy::Tokenizer& tokenizer, std::string_view text) {
  for (const bool specials : {false, true}) {
    const auto ids = tokenizer.encode(text, specials);
    if (!ids.ok()) continue;
    convoy::TextStream stream(tokenizer, {"ab", "\xC3\xA9"});
    std::string shown;
    for (const int32_t id : ids.value()) {
      CONVOY_CHECK_OP(id, >=, 0);
      CONVOY_CHECK_OP(id, <, tokenizer.vocab_size());
      const std::string delta = stream.push(id);
      CONVOY_CHECK(!convoy::find_invalid_utf8(delta), "a delta is not valid UTF-8");
      shown += delta;
    }
    shown += stream.finish();
    const std::string decoded = tokenizer.decode(ids.value(), false);
    CONVOY_CHECK(decoded.starts_with(shown), "the stream and decode disagree");
    CONVOY_CHECK(stream.stopped() || decoded == shown, "the stream lost text");
    if (specials) continue;
    // The file may or may not ask for NFC.
    std::string storage;
    const auto normalized = convoy::to_nfc(text, storage);
    CONVOY_CHECK(decoded == text || (normalized.ok() && decoded == normalized.value()),
                 "text did not come back");
    for (const int32_t id : ids.value())
      CONVOY_CHECK(!tokenizer.is_special(id), "text became a special token");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto tokenizer_json = take_part(input);
  const auto text = take_part(input);
  const auto config_json = take_part(input);
  try {
    const auto tokenizer = convoy::Tokenizer::parse(tokenizer_json, config_json, "fuzz");
    check_text(tokenizer, text);
  } catch (const convoy::StartError&) {
    // A refused file is a good outcome.
  }
  return 0;
}
