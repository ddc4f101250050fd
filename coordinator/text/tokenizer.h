// Text to token ids and back: byte-level BPE as Hugging Face's tokenizer.json describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "coordinator/text/added_tokens.h"

namespace convoy {

/// Immutable after loading; every const function may be called from several threads at once.
/// Moved-from: only to be destroyed or assigned to.
class Tokenizer {
 public:
  /// Reads `directory`/tokenizer.json and, if it is there, the added_tokens_decoder of
  /// `directory`/tokenizer_config.json, whose flags win. Throws StartError that names the file, the
  /// key and the value; read_tokenizer_file says what is supported.
  static Tokenizer load(const std::filesystem::path& directory);

  /// The same from memory. `tokenizer_config_json` may be empty; `where` is the folder named in
  /// messages.
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                         const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Ids of `text`, without any token put around it (Hugging Face's add_special_tokens = false).
  ///
  /// specials = true: added tokens found in the text become their ids, as Hugging Face does: for
  /// text that we wrote ourselves, such as a rendered chat template. specials = false: the text is
  /// ordinary text: no id of an added token is produced, whether the file calls the token special
  /// or not ("<think>" is often not). For text that came from outside. The ids are those of Hugging
  /// Face with the added tokens removed. Where an added token is also the result of a merge, that
  /// merge is never applied.
  ///
  /// The error names the byte at which the text is not well-formed UTF-8 (a lone surrogate, for
  /// example), or says that it has 2 GiB or more. NUL and a byte order mark are ordinary
  /// characters.
  Result<std::vector<int32_t>> encode(std::string_view text, bool specials) const;

  /// `text` cut where encode(text, true) finds added tokens, in order. Views into `text`, which is
  /// well-formed UTF-8.
  std::vector<TextPart> split_added_tokens(std::string_view text) const;

  /// Contents of all added tokens, special or not.
  std::vector<std::string> added_token_contents() const;

  /// Bytes of one token, which may be a part of a character. Empty for special tokens unless
  /// `specials`, and for ids that the tokenizer does not have (models pad their vocabulary). Valid
  /// as long as the tokenizer.
  std::string_view token_bytes(int32_t id, bool specials) const;

  /// Text of `ids`: the joined token_bytes, in which bytes that are no character become U+FFFD (one
  /// for each maximal ill-formed part, as Hugging Face does).
  std::string decode(std::span<const int32_t> ids, bool specials) const;

  /// Highest id + 1.
  int vocab_size() const;

  /// Whether the file marks the token special, that is, hidden from decoded text.
  bool is_special(int32_t id) const;

  /// Id of the added token with this content, special or not ("<|im_end|>").
  std::optional<int32_t> added_token(std::string_view content) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<const State> state);

  std::unique_ptr<const State> state_;
};

}  // namespace convoy
