#include "coordinator/text/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <charconv>
#include <optional>
#include <utility>

#include "base/exit_code.h"
#include "coordinator/text/byte_alphabet.h"
#include "coordinator/text/json_node.h"
#include "coordinator/text/utf8.h"

namespace convoy {
namespace {

using Vocabulary = boost::unordered_flat_map<std::string_view, int32_t>;

// ByteLevel with use_regex cuts with the pattern of GPT-2.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr int kMaxSequenceDepth = 4;

class Reader {
 public:
  Reader(JsonNode root, TokenizerFile& out) : root_(std::move(root)), out_(out) {}

  void read_model();
  void read_pipeline();
  /// `config`: tokenizer_config.json, if there is one.
  void read_added_tokens(const std::optional<JsonNode>& config);
  void read_merges();

 private:
  void read_vocabulary(const JsonNode& node);
  int32_t lookup(std::string_view token, const JsonNode& merges, size_t index) const;
  void read_normalizer(const JsonNode& node, int depth);
  void read_pre_tokenizer(const JsonNode& node, int depth);
  void add_token(const JsonNode& node, int64_t id);
  std::string& bytes_of(int64_t id, const JsonNode& node);

  JsonNode root_;
  TokenizerFile& out_;
  Vocabulary vocabulary_;
  std::vector<bool> in_vocabulary_;
  boost::unordered_flat_map<std::string, size_t> added_by_content_;
  boost::unordered_flat_map<int32_t, size_t> added_by_id_;
  bool byte_level_ = false;
};

void Reader::read_model() {
  const JsonNode model = root_.at("model");
  if (const auto type = model.find("type"); type && type->string() != "BPE") {
    type->fail(fmt::format("is {}, only \"BPE\" is supported", in_quotes(type->string())));
  }
  if (model.flag("byte_fallback", false))
    model.at("byte_fallback").fail("is true, which is not supported");
  if (const auto dropout = model.find("dropout")) dropout->fail("is set, which is not supported");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto text = model.find(key);
    if (text && !text->string().empty()) {
      text->fail(fmt::format("is {}, which is not supported", in_quotes(text->string())));
    }
  }
  out_.ignore_merges = model.flag("ignore_merges", false);
  read_vocabulary(model.at("vocab"));
}

std::string& Reader::bytes_of(int64_t id, const JsonNode& node) {
  if (id < 0 || id >= kMaxTokenIds) {
    node.fail(fmt::format("has the id {}, allowed are 0 to {}", id, kMaxTokenIds - 1));
  }
  const auto index = static_cast<size_t>(id);
  if (index >= out_.token_bytes.size()) {
    out_.token_bytes.resize(index + 1);
    in_vocabulary_.resize(index + 1);
  }
  return out_.token_bytes[index];
}

void Reader::read_vocabulary(const JsonNode& node) {
  const auto& entries = node.object();
  vocabulary_.reserve(entries.size());
  out_.token_bytes.reserve(std::min(entries.size(), static_cast<size_t>(kMaxTokenIds)));
  for (const auto& entry : entries) {
    const std::string_view token(entry.key().data(), entry.key().size());
    const int64_t* id = entry.value().if_int64();
    if (id == nullptr) node.fail(fmt::format("has no integer as the id of {}", in_quotes(token)));
    std::string& bytes = bytes_of(*id, node);
    const auto index = static_cast<size_t>(*id);
    if (token.empty()) node.fail("has an empty token");
    if (in_vocabulary_[index])
      node.fail(fmt::format("has the id {} twice, the second time for {}", *id, in_quotes(token)));
    in_vocabulary_[index] = true;
    // Hugging Face's decoder takes a token outside the byte alphabet as its own text. Text never
    // becomes such a token.
    auto spelled = byte_alphabet::to_bytes(token);
    if (spelled && out_.ignore_merges) out_.whole_pieces.push_back(static_cast<int32_t>(*id));
    bytes = spelled ? *std::move(spelled) : std::string(token);
    vocabulary_.emplace(token, static_cast<int32_t>(*id));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary_.find(byte_alphabet::spelling(static_cast<uint8_t>(byte)));
    if (found == vocabulary_.end())
      node.fail(fmt::format("has no token for the byte 0x{:02X}", byte));
    out_.byte_ids[static_cast<size_t>(byte)] = found->second;
  }
}

int32_t Reader::lookup(std::string_view token, const JsonNode& merges, size_t index) const {
  const auto found = vocabulary_.find(token);
  if (found == vocabulary_.end()) {
    merges.fail(fmt::format("names {} in entry {}, which is not in the vocabulary",
                            in_quotes(token), index));
  }
  return found->second;
}

void Reader::read_merges() {
  const JsonNode node = root_.at("model").at("merges");
  const auto& merges = node.array();
  out_.merges.reserve(merges.size());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    std::string_view left;
    std::string_view right;
    const auto* pair = merges[i].if_array();
    if (const auto* line = merges[i].if_string()) {
      const std::string_view text(line->data(), line->size());
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        node.fail(fmt::format("has {} as entry {}, two tokens and one space were expected",
                              in_quotes(text), i));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (pair != nullptr && pair->size() == 2 && (*pair)[0].is_string() &&
               (*pair)[1].is_string()) {
      left = {(*pair)[0].get_string().data(), (*pair)[0].get_string().size()};
      right = {(*pair)[1].get_string().data(), (*pair)[1].get_string().size()};
    } else {
      node.fail(fmt::format("has an entry {} that is neither a string nor two strings", i));
    }
    joined.assign(left).append(right);
    const Merge merge{lookup(left, node, i), lookup(right, node, i), lookup(joined, node, i)};
    if (!added_by_id_.contains(merge.result)) out_.merges.push_back(merge);
  }
}

void Reader::read_normalizer(const JsonNode& node, int depth) {
  const JsonNode type = node.at("type");
  if (type.string() == "NFC") {
    out_.nfc = true;
  } else if (type.string() == "Sequence" && depth < kMaxSequenceDepth) {
    const JsonNode parts = node.at("normalizers");
    for (size_t i = 0; i < parts.array().size(); ++i) read_normalizer(parts.item(i), depth + 1);
  } else {
    type.fail(fmt::format("is {}, only \"NFC\" and a \"Sequence\" of it are supported",
                          in_quotes(type.string())));
  }
}

void Reader::read_pre_tokenizer(const JsonNode& node, int depth) {
  const JsonNode type = node.at("type");
  if (type.string() == "Sequence" && depth < kMaxSequenceDepth) {
    const JsonNode parts = node.at("pretokenizers");
    for (size_t i = 0; i < parts.array().size(); ++i) read_pre_tokenizer(parts.item(i), depth + 1);
    return;
  }
  if (byte_level_) type.fail("follows ByteLevel, which must be the last step");
  if (type.string() == "ByteLevel") {
    byte_level_ = true;
    const JsonNode prefix = node.at("add_prefix_space");
    if (prefix.boolean()) prefix.fail("is true, which is not supported");
    if (node.flag("use_regex", true)) out_.patterns.emplace_back(kByteLevelPattern);
  } else if (type.string() == "Split") {
    const JsonNode behavior = node.at("behavior");
    if (behavior.string() != "Isolated") {
      behavior.fail(
          fmt::format("is {}, only \"Isolated\" is supported", in_quotes(behavior.string())));
    }
    if (node.flag("invert", false)) node.at("invert").fail("is true, which is not supported");
    const JsonNode pattern = node.at("pattern");
    if (!pattern.find("Regex")) pattern.fail("has no \"Regex\", which is the only supported kind");
    out_.patterns.emplace_back(pattern.at("Regex").string());
  } else {
    type.fail(
        fmt::format("is {}, only \"Split\", \"ByteLevel\" and a \"Sequence\" of them are supported",
                    in_quotes(type.string())));
  }
}

void Reader::read_pipeline() {
  if (const auto normalizer = root_.find("normalizer")) read_normalizer(*normalizer, 0);
  const JsonNode pre_tokenizer = root_.at("pre_tokenizer");
  read_pre_tokenizer(pre_tokenizer, 0);
  if (!byte_level_)
    pre_tokenizer.fail("has no ByteLevel step, without which a tokenizer is not supported");
  const auto only_byte_level = [](const JsonNode& node) {
    const JsonNode type = node.at("type");
    if (type.string() != "ByteLevel") {
      type.fail(fmt::format("is {}, only \"ByteLevel\" is supported", in_quotes(type.string())));
    }
  };
  only_byte_level(root_.at("decoder"));
  if (const auto post_processor = root_.find("post_processor")) only_byte_level(*post_processor);
}

void Reader::read_added_tokens(const std::optional<JsonNode>& config) {
  if (const auto tokens = root_.find("added_tokens")) {
    for (size_t i = 0; i < tokens->array().size(); ++i) {
      const JsonNode token = tokens->item(i);
      add_token(token, token.at("id").integer());
    }
  }
  if (!config) return;
  if (config->flag("add_prefix_space", false)) {
    config->at("add_prefix_space").fail("is true, which is not supported");
  }
  const auto tokens = config->find("added_tokens_decoder");
  if (!tokens) return;
  for (const auto& entry : tokens->object()) {
    const std::string_view key(entry.key().data(), entry.key().size());
    int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size()) {
      tokens->fail(fmt::format("has the key {}, an id was expected", in_quotes(key)));
    }
    add_token(tokens->at(key), id);
  }
}

// A content named again keeps its id and takes the later flags: tokenizer_config.json has the last
// word.
void Reader::add_token(const JsonNode& node, int64_t id) {
  AddedToken token;
  token.content = node.at("content").string();
  if (token.content.empty()) node.fail("has an empty content");
  token.special = node.flag("special", false);
  token.normalized = node.flag("normalized", !token.special);
  token.lstrip = node.flag("lstrip", false);
  token.rstrip = node.flag("rstrip", false);
  token.single_word = node.flag("single_word", false);

  std::string& bytes = bytes_of(id, node);
  token.id = static_cast<int32_t>(id);
  const std::string name = in_quotes(token.content);
  if (const auto same = vocabulary_.find(token.content);
      same != vocabulary_.end() && same->second != token.id) {
    node.fail(
        fmt::format("gives {} the id {}, the vocabulary gives it {}", name, id, same->second));
  } else if (same == vocabulary_.end()) {
    if (in_vocabulary_[static_cast<size_t>(id)]) {
      node.fail(
          fmt::format("gives {} the id {}, which the vocabulary gives to another token", name, id));
    }
    bytes = token.content;
  } else if (token.special && bytes.size() == 1) {
    node.fail(fmt::format("makes {}, the token of a single byte, special", name));
  }
  const auto [by_id, new_id] = added_by_id_.try_emplace(token.id, out_.added.size());
  const auto [by_content, new_content] =
      added_by_content_.try_emplace(token.content, out_.added.size());
  if (new_id != new_content || (!new_id && by_id->second != by_content->second)) {
    node.fail(
        fmt::format("gives {} the id {}, another added token has one of them already", name, id));
  }
  if (new_id) {
    out_.added.push_back(std::move(token));
  } else {
    out_.added[by_id->second] = std::move(token);
  }
}

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view tokenizer_json, std::string_view config_json,
                                  const std::string& where) {
  const std::string file = where + "/tokenizer.json";
  const std::string config_file = where + "/tokenizer_config.json";
  boost::json::monotonic_resource memory(1 << 20);
  const auto root = parse_json(tokenizer_json, file, &memory);
  std::optional<boost::json::value> config;
  if (!config_json.empty()) config = parse_json(config_json, config_file, &memory);

  TokenizerFile out;
  Reader reader(JsonNode(root, file), out);
  reader.read_model();
  reader.read_pipeline();
  std::optional<JsonNode> config_node;
  if (config) config_node.emplace(*config, config_file);
  reader.read_added_tokens(config_node);
  reader.read_merges();
  return out;
}

}  // namespace convoy
