#include "coordinator/text/byte_alphabet.h"

#include <array>

#include "coordinator/text/utf8.h"

namespace convoy::byte_alphabet {
namespace {

constexpr int kCodePoints = 0x144;  // the alphabet ends at U+0143

struct Alphabet {
  std::array<std::array<char, 2>, 256> text{};
  std::array<uint8_t, 256> text_bytes{};
  std::array<int16_t, kCodePoints> byte_of{};  // -1: not in the alphabet
};

// Printable Latin-1 characters spell their own byte; the others follow from U+0100 on.
constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte_of) byte = -1;
  size_t next = 0x100;
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const size_t code_point = printable ? byte : next++;
    alphabet.byte_of[code_point] = static_cast<int16_t>(byte);
    if (code_point < 0x80) {
      alphabet.text[byte] = {static_cast<char>(code_point), 0};
      alphabet.text_bytes[byte] = 1;
    } else {
      alphabet.text[byte] = {static_cast<char>(0xC0 | code_point >> 6),
                             static_cast<char>(0x80 | (code_point & 0x3F))};
      alphabet.text_bytes[byte] = 2;
    }
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string_view spelling(uint8_t byte) {
  return {kAlphabet.text[byte].data(), kAlphabet.text_bytes[byte]};
}

std::optional<std::string> to_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t offset = 0; offset < token.size();) {
    size_t size_bytes = 0;
    const char32_t c = code_point_at(token, offset, size_bytes);
    if (c >= kCodePoints || kAlphabet.byte_of[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte_of[c]);
    offset += size_bytes;
  }
  return bytes;
}

}  // namespace convoy::byte_alphabet
