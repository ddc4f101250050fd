// A tokenizer.json of a few hundred lines, built in memory, for tests that change one thing in it.
#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "coordinator/text/byte_alphabet.h"

namespace convoy::text_test {

/// 256 byte tokens (id = byte), then "he" 256, "ll" 257, "hell" 258, "hello" 259, and the added
/// tokens <|end|> 260 (special) and <think> 261 (not special).
inline boost::json::object small_tokenizer() {
  boost::json::object vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[std::string(byte_alphabet::spelling(static_cast<uint8_t>(byte)))] = byte;
  }
  vocab["he"] = 256;
  vocab["ll"] = 257;
  vocab["hell"] = 258;
  vocab["hello"] = 259;
  auto document = boost::json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 260, "content": "<|end|>", "special": true, "normalized": false},
                     {"id": 261, "content": "<think>", "special": false, "normalized": false}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+|[^\\s\\p{L}]+"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "byte_fallback": false,
              "merges": [["h", "e"], "l l", ["he", "ll"], ["hell", "o"]]}
  })")
                      .as_object();
  document["model"].as_object()["vocab"] = vocab;
  return document;
}

/// Merges `patch` into `base`: objects member by member, other values replaced.
inline void apply_patch(boost::json::object& base, const boost::json::object& patch) {
  for (const auto& member : patch) {
    auto* old = base.if_contains(member.key());
    if (old != nullptr && old->is_object() && member.value().is_object()) {
      apply_patch(old->as_object(), member.value().as_object());
    } else {
      base[member.key()] = member.value();
    }
  }
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace convoy::text_test
