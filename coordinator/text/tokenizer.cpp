#include "coordinator/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>
#include <fstream>
#include <mutex>

#include "base/exit_code.h"
#include "coordinator/text/bpe.h"
#include "coordinator/text/json_node.h"
#include "coordinator/text/normalizer.h"
#include "coordinator/text/split_pattern.h"
#include "coordinator/text/tokenizer_file.h"
#include "coordinator/text/utf8.h"

namespace convoy {
namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{64} << 20;
constexpr size_t kMaxTextBytes = (size_t{1} << 31) - 1;
// A scratch that a huge text has grown is not kept.
constexpr size_t kMaxKeptScratchBytes = size_t{4} << 20;

// What one call of encode needs beside the tables.
struct EncodeScratch {
  MatchScratch match;
  BpeScratch bpe;
  std::string normalized;
  std::vector<TextPart> raw_parts;
  std::vector<TextPart> parts;
  std::vector<std::string_view> pieces;
  std::vector<std::string_view> next_pieces;

  size_t bytes() const {
    return bpe.work_bytes() + normalized.capacity() +
           (raw_parts.capacity() + parts.capacity()) * sizeof(TextPart) +
           (pieces.capacity() + next_pieces.capacity()) * sizeof(std::string_view);
  }
};

// Lends scratches to concurrent calls, so that their caches stay warm without thread-local state.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take() {
    {
      const std::scoped_lock lock(mutex_);
      if (!free_.empty()) {
        auto scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<EncodeScratch>();
  }

  void give_back(std::unique_ptr<EncodeScratch> scratch) {
    if (scratch->bytes() > kMaxKeptScratchBytes) return;
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

std::string read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw StartError(fmt::format("{}: no such file, or not a regular one", path.string()));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw StartError(fmt::format("{}: {}", path.string(), error.message()));
  if (size > kMaxFileBytes) {
    throw StartError(fmt::format("{}: has {} bytes, at most {} are allowed", path.string(), size,
                                 kMaxFileBytes));
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) throw StartError(fmt::format("{}: cannot be read", path.string()));
  return text;
}

std::vector<AddedToken> tokens_to_match(const TokenizerFile& file, bool normalized,
                                        const std::string& where) {
  std::vector<AddedToken> tokens;
  boost::unordered_flat_map<std::string, int32_t> seen;
  for (AddedToken token : file.added) {
    if (token.normalized != normalized) continue;
    if (normalized && file.nfc) {
      std::string storage;
      const auto content = to_nfc(token.content, storage);
      if (!content) throw StartError(fmt::format("{}/tokenizer.json: {}", where, content.error()));
      token.content = std::string(content.value());
    }
    if (const auto [other, fresh] = seen.try_emplace(token.content, token.id); !fresh) {
      throw StartError(
          fmt::format("{}/tokenizer.json: the added tokens {} and {} are the same text {}", where,
                      other->second, token.id, in_quotes(token.content)));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<SplitPattern> compile_patterns(const TokenizerFile& file, const std::string& where) {
  std::vector<SplitPattern> patterns;
  for (const auto& text : file.patterns) {
    auto pattern = SplitPattern::compile(text);
    if (!pattern)
      throw StartError(fmt::format("{}/tokenizer.json: pre_tokenizer: {}", where, pattern.error()));
    patterns.push_back(std::move(pattern).value());
  }
  return patterns;
}

}  // namespace

struct Tokenizer::State {
  State(TokenizerFile file, const std::string& where)
      : token_bytes(std::move(file.token_bytes)),
        nfc(file.nfc),
        raw_tokens(tokens_to_match(file, false, where)),
        normalized_tokens(tokens_to_match(file, true, where)),
        patterns(compile_patterns(file, where)),
        merges(file.merges, file.byte_ids),
        special(token_bytes.size()) {
    std::vector<bool> is_added(token_bytes.size());
    for (const auto& token : file.added) {
      added.emplace(token.content, token.id);
      is_added[static_cast<size_t>(token.id)] = true;
      special[static_cast<size_t>(token.id)] = token.special;
    }
    for (const int32_t id : file.whole_pieces) {
      const auto index = static_cast<size_t>(id);
      if (!is_added[index]) whole_pieces.emplace(token_bytes[index], id);
    }
  }

  Status encode_normalized(std::string_view text, EncodeScratch& scratch,
                           std::vector<int32_t>& out) const;

  std::vector<std::string> token_bytes;
  bool nfc;
  AddedTokenMatcher raw_tokens;
  AddedTokenMatcher normalized_tokens;
  std::vector<SplitPattern> patterns;
  BpeMerges merges;
  std::vector<bool> special;
  boost::unordered_flat_map<std::string, int32_t> added;
  boost::unordered_flat_map<std::string_view, int32_t> whole_pieces;  // of ignore_merges
  mutable ScratchPool pool;
};

// Ordinary text that holds no added token, normalised already.
Status Tokenizer::State::encode_normalized(std::string_view text, EncodeScratch& scratch,
                                           std::vector<int32_t>& out) const {
  auto& pieces = scratch.pieces;
  auto& next = scratch.next_pieces;
  pieces.assign(1, text);
  for (const auto& pattern : patterns) {
    next.clear();
    for (const auto piece : pieces) {
      if (auto status = pattern.split(piece, scratch.match, next); !status) return status;
    }
    pieces.swap(next);
  }
  for (const auto piece : pieces) {
    if (!whole_pieces.empty()) {
      if (const auto whole = whole_pieces.find(piece); whole != whole_pieces.end()) {
        out.push_back(whole->second);
        continue;
      }
    }
    merges.encode(piece, scratch.bpe, out);
  }
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const std::string tokenizer = read_file(directory / "tokenizer.json");
  std::string config;
  std::error_code absent;
  if (std::filesystem::exists(directory / "tokenizer_config.json", absent)) {
    config = read_file(directory / "tokenizer_config.json");
  }
  return parse(tokenizer, config, directory.string());
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                           const std::string& where) {
  return Tokenizer(std::make_unique<const State>(
      read_tokenizer_file(tokenizer_json, tokenizer_config_json, where), where));
}

std::vector<TextPart> Tokenizer::split_added_tokens(std::string_view text) const {
  std::vector<TextPart> parts;
  state_->raw_tokens.split(text, parts);
  return parts;
}

std::vector<std::string> Tokenizer::added_token_contents() const {
  std::vector<std::string> contents;
  for (const auto& [content, id] : state_->added) contents.push_back(content);
  return contents;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool specials) const {
  if (text.size() > kMaxTextBytes) {
    return Error{
        fmt::format("the text has {} bytes, at most {} are allowed", text.size(), kMaxTextBytes)};
  }
  if (const auto bad = find_invalid_utf8(text)) {
    return Error{fmt::format("the text is not valid UTF-8: byte {} (0x{:02X}) begins no character",
                             *bad, static_cast<uint8_t>(text[*bad]))};
  }
  const State& state = *state_;
  std::vector<int32_t> out;
  out.reserve(text.size() / 4 + 1);
  auto scratch = state.pool.take();
  auto& raw_parts = scratch->raw_parts;
  auto& parts = scratch->parts;
  raw_parts.clear();
  if (specials) {
    state.raw_tokens.split(text, raw_parts);
  } else {
    raw_parts.push_back({-1, text});
  }
  for (const auto& raw : raw_parts) {
    if (raw.id >= 0) {
      out.push_back(raw.id);
      continue;
    }
    std::string_view normalized = raw.text;
    if (state.nfc) {
      auto result = to_nfc(raw.text, scratch->normalized);
      if (!result) return Error{result.error()};
      normalized = result.value();
    }
    parts.clear();
    if (specials && !state.normalized_tokens.empty()) {
      state.normalized_tokens.split(normalized, parts);
    } else {
      parts.push_back({-1, normalized});
    }
    for (const auto& part : parts) {
      if (part.id >= 0) {
        out.push_back(part.id);
      } else if (const auto status = state.encode_normalized(part.text, *scratch, out); !status) {
        return Error{status.error()};
      }
    }
  }
  state.pool.give_back(std::move(scratch));
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t id, bool specials) const {
  if (id < 0 || id >= vocab_size() || (!specials && is_special(id))) return {};
  return state_->token_bytes[static_cast<size_t>(id)];
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool specials) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += token_bytes(id, specials);
  return to_valid_utf8(std::move(bytes));
}

int Tokenizer::vocab_size() const {
  return static_cast<int>(state_->token_bytes.size());
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->special[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::added_token(std::string_view content) const {
  const auto found = state_->added.find(std::string(content));
  if (found == state_->added.end()) return std::nullopt;
  return found->second;
}

}  // namespace convoy
