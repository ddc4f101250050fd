// Reads tokenizer.json: everything that decides what the tokenizer does, checked, with every
// unsupported setting refused.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/added_tokens.h"
#include "coordinator/text/bpe.h"

namespace convoy {

/// A byte-level BPE tokenizer as its files describe it.
struct TokenizerFile {
  /// Bytes of the token of each id; empty where the file has none.
  std::vector<std::string> token_bytes;
  std::array<int32_t, 256> byte_ids{};
  /// In rank order. Merges that would spell an added token are left out, see Tokenizer::encode.
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  /// A piece that is a token is that token, whatever the merges say.
  bool ignore_merges = false;
  /// With ignore_merges: the tokens that a piece can be. May hold added tokens.
  std::vector<int32_t> whole_pieces;
  bool nfc = false;
  /// Pre-tokenizer patterns as written, each applied to the pieces of the one before.
  std::vector<std::string> patterns;
};

/// Ids at or above this are refused: tables are indexed by id.
inline constexpr int64_t kMaxTokenIds = int64_t{1} << 20;

/// Parses tokenizer.json and, unless it is empty, tokenizer_config.json. `where` is the folder
/// named in messages. Throws StartError for whatever is malformed, contradictory or not supported.
///
/// Supported: model BPE without byte_fallback, dropout, prefix and suffix; normalizer NFC, a
/// Sequence of NFC, or none; pre-tokenizer ByteLevel, alone or after Split steps (Regex, Isolated,
/// not inverted), without add_prefix_space; decoder ByteLevel; post-processor ByteLevel or none.
/// truncation and padding are the caller's and ignored.
TokenizerFile read_tokenizer_file(std::string_view tokenizer_json, std::string_view config_json,
                                  const std::string& where);

}  // namespace convoy
