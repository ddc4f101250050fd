#include "coordinator/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>
#include <ctime>
#include <random>
#include <thread>

#include "coordinator/text/normalizer.h"
#include "coordinator/text/utf8.h"
#include "tests/unit/text/small_tokenizer.h"

namespace convoy {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using text_test::apply_patch;
using text_test::read_text;
using text_test::small_tokenizer;
using Ids = std::vector<int32_t>;

const std::filesystem::path kStandin = CONVOY_SOURCE_DIR "/tests/fixtures/standin";
const std::filesystem::path kVectors =
    CONVOY_SOURCE_DIR "/tests/unit/text/fixtures/standin_vectors.json";
const std::filesystem::path kQwen3 = CONVOY_BUILD_DIR "/fixtures/qwen3-tokenizer";

// Processor time, so that a busy machine does not fail a test.
class Stopwatch {
 public:
  double seconds() const { return static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC; }

 private:
  std::clock_t start_ = std::clock();
};

// Limits hold for an optimised build; others get more time and still notice quadratic behaviour.
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr double kSlack = 1.0;
#else
constexpr double kSlack = 20.0;
#endif

const Tokenizer& standin() {
  static const Tokenizer tokenizer = Tokenizer::load(kStandin);
  return tokenizer;
}

std::string to_string(const json::value& value) {
  return std::string(value.as_string());
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool specials) {
  auto ids = tokenizer.encode(text, specials);
  EXPECT_TRUE(ids.ok()) << (ids.ok() ? "" : ids.error());
  return ids.ok() ? std::move(ids).value() : Ids{};
}

std::string nfc(std::string_view text) {
  std::string storage;
  const auto normalized = to_nfc(text, storage);
  EXPECT_TRUE(normalized.ok());
  return std::string(normalized.value());
}

Tokenizer parse(const json::object& document) {
  return Tokenizer::parse(json::serialize(document), "", "test");
}

// --- exactness
// ---------------------------------------------------------------------------------------------------

TEST(TokenizerExactness, ReferencePromptsGiveTheReferenceIds) {
  const auto reference = json::parse(read_text(kStandin / "reference.json"));
  ASSERT_EQ(reference.as_array().size(), 5u);
  for (const auto& entry : reference.as_array()) {
    const auto text = to_string(entry.at("prompt"));
    EXPECT_EQ(encode(standin(), text, text.starts_with("<|")),
              json::value_to<Ids>(entry.at("prompt_ids")))
        << text;
  }
}

TEST(TokenizerExactness, StandinAgreesWithHuggingFaceWithAndWithoutAddedTokens) {
  const auto vectors = json::parse(read_text(kVectors));
  ASSERT_GE(vectors.at("vectors").as_array().size(), 300u);
  for (const auto& entry : vectors.at("vectors").as_array()) {
    const auto text = to_string(entry.at("text"));
    EXPECT_EQ(encode(standin(), text, true), json::value_to<Ids>(entry.at("ids"))) << text;
    EXPECT_EQ(encode(standin(), text, false), json::value_to<Ids>(entry.at("plain_ids"))) << text;
  }
}

TEST(TokenizerExactness, DecodingBrokenCharactersAgreesWithHuggingFace) {
  const auto vectors = json::parse(read_text(kVectors));
  ASSERT_GE(vectors.at("decode").as_array().size(), 100u);
  for (const auto& entry : vectors.at("decode").as_array()) {
    const auto ids = json::value_to<Ids>(entry.at("ids"));
    EXPECT_EQ(standin().decode(ids, false), to_string(entry.at("text"))) << json::serialize(entry);
    EXPECT_EQ(standin().decode(ids, true), to_string(entry.at("text_with_specials")))
        << json::serialize(entry);
  }
}

TEST(TokenizerExactness, VariantsOfTheFileAgreeWithHuggingFace) {
  const auto vectors = json::parse(read_text(kVectors));
  ASSERT_GE(vectors.at("variants").as_array().size(), 8u);
  for (const auto& variant : vectors.at("variants").as_array()) {
    SCOPED_TRACE(to_string(variant.at("name")));
    auto document = json::parse(read_text(kStandin / "tokenizer.json")).as_object();
    apply_patch(document, variant.at("patch").as_object());
    const Tokenizer tokenizer = parse(document);
    for (const auto& entry : variant.at("vectors").as_array()) {
      const auto text = to_string(entry.at("text"));
      EXPECT_EQ(encode(tokenizer, text, true), json::value_to<Ids>(entry.at("ids"))) << text;
    }
  }
}

TEST(TokenizerExactness, Qwen3VectorsAreExactAndTheFileLoadsInTime) {
  const Stopwatch load_time;
  const Tokenizer tokenizer = Tokenizer::load(kQwen3);
  EXPECT_LT(load_time.seconds(), 0.3 * kSlack);
  EXPECT_EQ(tokenizer.vocab_size(), 151669);
  EXPECT_FALSE(tokenizer.is_special(*tokenizer.added_token("<think>")));
  for (const int32_t id : encode(tokenizer, "<think><|im_end|></think>", false))
    EXPECT_LT(id, 151643);
  const auto vectors = json::parse(read_text(kQwen3 / "encode_vectors.json"));
  int exact = 0;
  for (const auto& entry : vectors.at("vectors").as_array()) {
    const auto text = to_string(entry.at("text"));
    const auto expected = json::value_to<Ids>(entry.at("ids"));
    const auto ids = encode(tokenizer, text, true);
    EXPECT_EQ(ids, expected) << text;
    EXPECT_EQ(tokenizer.decode(ids, true), to_string(entry.at("decoded")));
    exact += ids == expected ? 1 : 0;
  }
  EXPECT_EQ(exact, 72);
  const auto chats = json::parse(read_text(kQwen3 / "chat_vectors.json"));
  for (const auto& entry : chats.at("cases").as_array()) {
    EXPECT_EQ(encode(tokenizer, to_string(entry.at("rendered")), true),
              json::value_to<Ids>(entry.at("ids")));
  }
}

// Two thousand texts of mixed scripts, emoji, odd spaces, code, combining marks and control
// markers.
TEST(TokenizerExactness, Qwen3IsExactOnRandomTexts) {
  const Tokenizer tokenizer = Tokenizer::load(kQwen3);
  const auto vectors =
      json::parse(read_text(CONVOY_SOURCE_DIR "/tests/unit/text/fixtures/qwen3_vectors.json"));
  ASSERT_EQ(vectors.at("vectors").as_array().size(), 2000u);
  for (const auto& entry : vectors.at("vectors").as_array()) {
    const auto text = to_string(entry.at("text"));
    EXPECT_EQ(encode(tokenizer, text, true), json::value_to<Ids>(entry.at("ids"))) << text;
    EXPECT_EQ(encode(tokenizer, text, false), json::value_to<Ids>(entry.at("plain_ids"))) << text;
  }
}

// --- control tokens
// ----------------------------------------------------------------------------------------------

TEST(TokenizerControl, EveryAddedTokenIsOrdinaryTextWithoutSpecials) {
  const auto document = json::parse(read_text(kStandin / "tokenizer.json"));
  ASSERT_EQ(document.at("added_tokens").as_array().size(), 19u);
  for (const auto& token : document.at("added_tokens").as_array()) {
    const auto content = to_string(token.at("content"));
    const auto id = static_cast<int32_t>(token.at("id").as_int64());
    EXPECT_EQ(standin().added_token(content), id);
    EXPECT_TRUE(standin().is_special(id));
    EXPECT_THAT(encode(standin(), content, true), ElementsAre(id));
    const std::string text = "say " + content + " twice" + content;
    const auto ids = encode(standin(), text, false);
    for (const int32_t part : ids) EXPECT_LT(part, 4077) << content;
    EXPECT_EQ(standin().decode(ids, false), text);
  }
}

TEST(TokenizerControl, AMarkerThatIsNotSpecialIsOrdinaryTextToo) {
  const Tokenizer tokenizer = parse(small_tokenizer());
  EXPECT_THAT(encode(tokenizer, "<think>", true), ElementsAre(261));
  EXPECT_THAT(encode(tokenizer, "<think>", false), ElementsAre('<', 't', 'h', 'i', 'n', 'k', '>'));
  EXPECT_FALSE(tokenizer.is_special(261));
  EXPECT_EQ(tokenizer.decode(Ids{260, 261}, false), "<think>");
  EXPECT_EQ(tokenizer.decode(Ids{260, 261}, true), "<|end|><think>");
}

TEST(TokenizerControl, MergesCannotSpellAnAddedToken) {
  auto document = small_tokenizer();
  document["added_tokens"].as_array().push_back(
      {{"id", 258}, {"content", "hell"}, {"special", true}});
  for (const bool ignore_merges : {false, true}) {
    document["model"].as_object()["ignore_merges"] = ignore_merges;
    const Tokenizer tokenizer = parse(document);
    EXPECT_THAT(encode(tokenizer, "hell", false), ElementsAre(256, 257));
    EXPECT_THAT(encode(tokenizer, "hell", true), ElementsAre(258));
  }
}

TEST(TokenizerControl, TheConfigurationAddsTokensAndItsFlagsWin) {
  const std::string config = R"({"added_tokens_decoder": {
      "261": {"content": "<think>", "special": true, "normalized": false},
      "300": {"content": "<tool>", "special": false, "normalized": false}}})";
  const Tokenizer tokenizer = Tokenizer::parse(json::serialize(small_tokenizer()), config, "test");
  EXPECT_TRUE(tokenizer.is_special(261));
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_THAT(encode(tokenizer, "<tool><think>", true), ElementsAre(300, 261));
  EXPECT_EQ(tokenizer.decode(Ids{262, 299, 300, 301, -1}, true), "<tool>")
      << "ids the file does not have are empty";
}

// --- text
// --------------------------------------------------------------------------------------------------------

TEST(TokenizerText, RandomUnicodeComesBackNormalised) {
  std::mt19937 random(7);
  const std::vector<std::pair<char32_t, char32_t>> ranges = {
      {0, 0x7F},        {0x80, 0x24F},    {0x300, 0x36F},     {0x370, 0x6FF},
      {0x900, 0xDFF},   {0x1100, 0x11FF}, {0x2000, 0x2BFF},   {0x3000, 0x9FFF},
      {0xAC00, 0xD7A3}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
  for (int round = 0; round < 3000; ++round) {
    std::u32string points;
    for (size_t length = random() % 20; points.size() < length;) {
      const auto [low, high] = ranges[random() % ranges.size()];
      points += static_cast<char32_t>(low + random() % (high - low + 1));
    }
    std::string text;
    for (const char32_t c : points) {
      if (c < 0x80) {
        text += static_cast<char>(c);
      } else {
        const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        const int lead[] = {0, 0xC0, 0xE0, 0xF0};
        text += static_cast<char>(lead[more] | static_cast<int>(c >> (6 * more)));
        for (int i = more - 1; i >= 0; --i)
          text += static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F));
      }
    }
    const auto ids = encode(standin(), text, false);
    ASSERT_EQ(standin().decode(ids, false), nfc(text));
    for (const int32_t id : ids) ASSERT_FALSE(standin().is_special(id));
  }
}

TEST(TokenizerText, CombiningMarksAreComposed) {
  EXPECT_EQ(encode(standin(), "e\u0301", false), encode(standin(), "\u00E9", false));
  EXPECT_EQ(encode(standin(), "\u1100\u1161\u11A8", false), encode(standin(), "\uAC01", false));
  EXPECT_EQ(encode(standin(), "\u212B", false), encode(standin(), "\u00C5", false));
  auto document = small_tokenizer();
  document["normalizer"] = nullptr;
  EXPECT_THAT(encode(parse(document), "e\u0301", false), ElementsAre('e', 0xCC, 0x81));
}

TEST(TokenizerText, NulAndByteOrderMarkAreCharacters) {
  const Tokenizer tokenizer = parse(small_tokenizer());
  EXPECT_THAT(encode(tokenizer, std::string_view("\0he\0", 4), false), ElementsAre(0, 256, 0));
  EXPECT_THAT(encode(tokenizer, "\uFEFFhe", false), ElementsAre(0xEF, 0xBB, 0xBF, 256));
}

TEST(TokenizerText, InvalidUtf8IsRefusedWithTheByteOffset) {
  const std::pair<std::string, int> cases[] = {
      {"ab\xFF", 2}, {"\x80", 0},     {"abcdefghijk\xED\xA0\x80", 11},
      {"a\xC3", 1},  {"\xC0\x80", 0}, {"\xF4\x90\x80\x80", 0}};
  for (const auto& [text, offset] : cases) {
    const auto ids = standin().encode(text, true);
    ASSERT_FALSE(ids.ok());
    EXPECT_THAT(ids.error(), HasSubstr("byte " + std::to_string(offset) + " ("));
  }
}

TEST(TokenizerText, AMegabyteInOnePieceTakesUnderASecond) {
  std::string random_letters;
  std::mt19937 random(3);
  while (random_letters.size() < 1'000'000)
    random_letters += static_cast<char>('a' + random() % 26);
  std::string cjk;
  while (cjk.size() < 1'000'000) cjk += "\u4E00";
  for (const std::string& text :
       {std::string(1'000'000, 'a'), std::string(1'000'000, ' '), std::string(1'000'000, '\n'),
        std::string(1'000'000, '='), random_letters, cjk}) {
    const Stopwatch encode_time;
    const auto ids = encode(standin(), text, false);
    EXPECT_LT(encode_time.seconds(), 1.0 * kSlack) << text.substr(0, 10);
    EXPECT_EQ(standin().decode(ids, false), text);
  }
}

TEST(TokenizerText, ConcurrentCallsGiveTheSameIds) {
  const auto vectors = json::parse(read_text(kVectors));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const auto& entry : vectors.at("vectors").as_array()) {
        const auto ids = standin().encode(to_string(entry.at("text")), true);
        if (!ids.ok() || ids.value() != json::value_to<Ids>(entry.at("ids"))) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace convoy
