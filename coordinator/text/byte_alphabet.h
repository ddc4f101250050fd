// The alphabet in which byte-level BPE files spell bytes: each byte is one printable character
// (GPT-2's bytes_to_unicode).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convoy::byte_alphabet {

/// The character that spells `byte`, in UTF-8; lives as long as the program.
std::string_view spelling(uint8_t byte);

/// The bytes that `token` (well-formed UTF-8) spells; nothing when it has a character outside the
/// alphabet.
std::optional<std::string> to_bytes(std::string_view token);

}  // namespace convoy::byte_alphabet
