// --prefix-cache: prompts that begin like earlier ones are answered alike, and computed less.
#include <csignal>
#include <random>
#include <sstream>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kPage = 64;
constexpr int kChunk = 128;

/// `count` tokens of the bundled model's tokenizer: each of these words is one.
std::string words_of(int count, unsigned seed) {
  static const Words kWords{" the", " dog",  " cat", " was", " and", " big", " red", " ball",
                            " boy", " girl", " saw", " a",   " to",  " he",  " she", " it"};
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < count; ++i) text += kWords[random() % kWords.size()];
  return text;
}

class PrefixTest : public ConvoyTest {
 protected:
  ProgramCall batch(const Words& prompts, Words words) const {
    const std::string file = (scratch.path() / "prompts").native();
    std::string text;
    for (const std::string& prompt : prompts) text += prompt + "\n";
    write_file(file, text);
    const Words common{"-f", file, "--prefill-chunk", std::to_string(kChunk), "--json"};
    words.insert(words.end(), common.begin(), common.end());
    return generate(std::move(words));
  }
  std::vector<json::object> answers(const Words& prompts, const Words& words) const {
    const Ended ended = run(batch(prompts, words));
    EXPECT_EXIT_CODE(ended, 0);
    std::vector<json::object> objects;
    std::istringstream in(ended.out);
    for (std::string line; std::getline(in, line);)
      objects.push_back(json::parse(line).as_object());
    EXPECT_EQ(objects.size(), prompts.size()) << ended.err;
    return objects;
  }
  static std::vector<int> cached(const std::vector<json::object>& list) {
    std::vector<int> tokens;
    for (const auto& object : list) tokens.push_back(object.at("cached_tokens").to_number<int>());
    return tokens;
  }
  static void expect_same_texts(const std::vector<json::object>& a,
                                const std::vector<json::object>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_EQ(a[i].at("token_ids"), b[i].at("token_ids")) << "line " << i + 1;
  }
};

class PrefixStagesTest : public PrefixTest, public ::testing::WithParamInterface<int> {};

TEST_P(PrefixStagesTest, ColdAndWarmPromptsOfEveryLengthGiveTheSameBytes) {
  Words prompts;
  std::vector<int> lengths, expected;
  for (const int length :
       {kPage - 1, kPage, kPage + 1, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk}) {
    for (const int warm : {0, 1}) {
      prompts.push_back(words_of(length, static_cast<unsigned>(length)));
      lengths.push_back(length);
      expected.push_back(warm * ((length - 1) / kPage * kPage));
    }
  }
  const Words options{"--devices", cpus(GetParam()), "--parallel", "1", "-n", "20", "--ignore-eos"};
  Words with = options;
  with.insert(with.end(), {"--prefix-images", "64"});
  const auto warm = answers(prompts, with);
  for (size_t i = 0; i < warm.size(); ++i)
    EXPECT_EQ(warm[i].at("prompt_tokens").to_number<int>(), lengths[i]);
  EXPECT_EQ(cached(warm), expected);
  Words without = options;
  without.insert(without.end(), {"--prefix-cache", "off"});
  const auto cold = answers(prompts, without);
  EXPECT_EQ(cached(cold), std::vector<int>(prompts.size(), 0));
  expect_same_texts(warm, cold);
}

// The first prompt that leaves another one begins at a chunk; where it left is known from then on.
TEST_P(PrefixStagesTest, SharedPrefixesOfOneThreeAndNinePagesAreFoundWhereImagesLie) {
  const std::string whole = words_of(700, 1);
  Words prompts{whole};
  for (const int pages : {1, 3, 9}) {
    const std::string shared = words_of(pages * kPage, 1);
    for (const unsigned seed : {2U, 3U})
      prompts.push_back(shared + words_of(70, static_cast<unsigned>(pages) * 10 + seed));
  }
  const Words options{"--devices",    cpus(GetParam()), "--parallel", "1",      "-n", "16",
                      "--ignore-eos", "--temperature",  "0.8",        "--seed", "5"};
  Words with = options;
  with.insert(with.end(), {"--prefix-images", "64"});
  const auto warm = answers(prompts, with);
  EXPECT_EQ(cached(warm), (std::vector<int>{0, 0, 64, 128, 192, 512, 576}));
  Words without = options;
  without.insert(without.end(), {"--prefix-cache", "off"});
  expect_same_texts(warm, answers(prompts, without));
}

INSTANTIATE_TEST_SUITE_P(Stages, PrefixStagesTest, ::testing::Values(1, 2, 3),
                         ::testing::PrintToStringParamName());

// Every step of every worker is checked against its ledger: one page group too many or too few ends
// the run.
TEST_F(PrefixTest, FewPageGroupsAndFewImagesChangeNoText) {
  std::mt19937 random(4);
  Words prompts;
  for (int i = 0; i < 60; ++i) {
    const int shared = static_cast<int>(random() % 4) * kPage;
    // Some end where a page does: their own state and their image are the same.
    const int more = i % 3 == 0 ? kPage : 1 + static_cast<int>(random() % 130);
    prompts.push_back(words_of(shared, static_cast<unsigned>(random() % 2)) +
                      words_of(more, static_cast<unsigned>(100 + random() % 20)));
  }
  const Words options{"--devices", cpus(3), "--parallel",    "3",   "-n",          "12",
                      "-c",        "448",   "--kv-capacity", "960", "--ignore-eos"};
  Words without = options;
  without.insert(without.end(), {"--prefix-cache", "off"});
  const auto cold = answers(prompts, without);
  for (const char* images : {"1", "3"}) {
    Words with = options;
    with.insert(with.end(), {"--prefix-images", images});
    const Ended ended = run(batch(prompts, with));
    EXPECT_EXIT_CODE(ended, 0);
    EXPECT_THAT(ended.err, HasSubstr("prefix cache: "));
    EXPECT_THAT(ended.err, ::testing::Not(HasSubstr(", 0 gave way"))) << images;
    expect_same_texts(answers(prompts, with), cold);
  }
}

// Two images on the devices; the others come back from host memory, each stage its part.
TEST_F(PrefixTest, PrefixesComeBackFromHostMemoryWithTheSameBytes) {
  Words prompts;
  for (const int round : {0, 1}) {
    for (const unsigned seed : {1U, 2U, 3U, 4U}) prompts.push_back(words_of(200 + round, seed));
  }
  for (const int stages : {1, 3}) {
    const Words options{"--devices", cpus(stages), "--parallel", "1", "-n", "12", "--ignore-eos"};
    Words without = options;
    without.insert(without.end(), {"--prefix-cache", "off"});
    const auto cold = answers(prompts, without);
    Words with = options;
    with.insert(with.end(), {"--prefix-images", "2", "--host-cache-gib", "0.02"});
    const auto warm = answers(prompts, with);
    EXPECT_EQ(cached(warm), (std::vector<int>{0, 0, 0, 0, 192, 192, 192, 192}));
    expect_same_texts(warm, cold);
    EXPECT_THAT(run(batch(prompts, with)).err, HasSubstr("of host memory, 4 came back"));
  }
}

// The second prompt goes on from the first one's answer, which reached the end of a page.
TEST_F(PrefixTest, FastKeepsWhatAnswersComputedAndExactDoesNot) {
  const std::string prompt = std::string(kPrompt) +
                             " there was a little girl named Lily who liked to play in the park "
                             "with her friends and her big red ball.";
  Words options{"--devices", cpus(2), "--parallel", "1", "-n", "120", "--ignore-eos"};
  // Prompts are lines: no token with a line feed.
  for (const char* id : {"198", "300", "493", "646", "753", "978", "2078"})
    options.insert(options.end(), {"--logit-bias", std::string(id) + "=-100"});
  const auto first = answers({prompt}, options);
  const auto tokens = first.front().at("prompt_tokens").to_number<int>();
  ASSERT_LT(tokens, kPage);
  const std::string text(first.front().at("text").as_string());
  ASSERT_EQ(text.find('\n'), std::string::npos);
  const Words prompts{prompt, prompt + text + " Then they went home."};
  for (const auto& [mode, hit] :
       {std::pair{"exact", 0}, std::pair{"fast", (tokens + 119) / kPage * kPage}}) {
    Words with = options;
    with.insert(with.end(), {"--prefix-cache", mode});
    const auto both = answers(prompts, with);
    ASSERT_EQ(both[0].at("text"), first.front().at("text"));
    EXPECT_EQ(cached(both), (std::vector<int>{0, hit})) << mode;
  }
}

TEST_F(PrefixTest, ASecondTurnOfAChatBeginsBehindTheFirst) {
  ProgramCall call = convoy({"chat", "-m", bundled_model_path().native(), "--greedy", "-n", "12",
                             "--system", words_of(150, 3)});
  call.input = "Hello\nAnd then?\n/stats\n";
  const Ended ended = run(call);
  EXPECT_EXIT_CODE(ended, 0);
  EXPECT_THAT(ended.out, HasSubstr("prefix cache: 1 of 2 prompts hit, "));
  EXPECT_THAT(ended.out, ::testing::Not(HasSubstr("prompts hit, 0 tokens")));
}

TEST_F(PrefixTest, HealthSaysWhatTheCacheHasAndDid) {
  ProgramCall call = batch({words_of(200, 1), words_of(200, 1)},
                           {"--devices", cpus(2), "--parallel", "1", "-n", "20", "--ignore-eos"});
  call.environment["CONVOY_TEST_HOLD"] = "0:decode:30";  // within the second answer
  Process coordinator(call);
  const StageState held = await_state(0, "held");
  const json::object& cache = held.all.at("prefix_cache").as_object();
  const auto number = [&](const char* key) { return cache.at(key).to_number<int64_t>(); };
  EXPECT_EQ(number("lookups"), 2);
  EXPECT_EQ(number("hits"), 1);
  EXPECT_EQ(number("hit_tokens"), 192);
  EXPECT_EQ(number("prefixes"), 2) << "at 128, a chunk's end, and at 192";
  EXPECT_EQ(number("page_groups"), 3);
  EXPECT_GT(number("bytes"), 0);
  EXPECT_EQ(number("evictions") + number("host_bytes"), 0);
  EXPECT_FALSE(stage(1).all.contains("prefix_cache"));
  EXPECT_THAT(run(convoy({"health"})).out, HasSubstr("prefix cache: 1 of 2 prompts hit"));
  coordinator.signal(SIGINT);
  coordinator.wait();
}

TEST_F(PrefixTest, ASinglePromptKeepsNothingAndPlansNothingForIt) {
  const auto single =
      json_of(run(generate({"-p", words_of(200, 1), "-n", "2", "--json", "--quiet"})));
  EXPECT_EQ(single.at("cached_tokens").as_int64(), 0);
  const auto state_bytes = [&](const Words& words) {
    Words all{"plan", "-m", bundled_model_path().native(), "--json", "--devices", "cpu"};
    all.insert(all.end(), words.begin(), words.end());
    const auto plan = json_of(run(convoy(all)));
    return plan.at("stages").at(0).at("state_bytes").as_int64();
  };
  const auto lanes = state_bytes({"--parallel", "2", "--prefix-cache", "off"});  // 4 slots
  EXPECT_EQ(state_bytes({"--parallel", "2"}), lanes * 12 / 4);
  EXPECT_EQ(state_bytes({"--parallel", "2", "--prefix-images", "2"}), lanes * 6 / 4);
  EXPECT_EQ(state_bytes({}), lanes / 2);
  // Half of the host memory is for images.
  const Ended plan = run(convoy({"plan", "-m", bundled_model_path().native(), "--devices", "cpu",
                                 "--prefix-cache", "exact", "--host-cache-gib", "0.02"}));
  const int64_t image = lanes / 4;
  EXPECT_THAT(plan.out, HasSubstr("prefix cache: 8 images of "));
  EXPECT_THAT(plan.out,
              HasSubstr("in host memory " + std::to_string((int64_t{1} << 30) / 100 / image)));
}

TEST_F(PrefixTest, MoreHostMemoryThanThereIsIsRefusedBeforeAnythingIsTaken) {
  const Ended ended = run(batch({kPrompt}, {"--parallel", "1", "--host-cache-gib", "60000"}));
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err), HasSubstr("--host-cache-gib asks for 64424509440000 bytes"));
}

TEST_F(PrefixTest, BadFlagsAreUsageErrors) {
  for (const Words& words : {Words{"--prefix-cache", "maybe"}, Words{"--prefix-images", "0"}}) {
    Words all{"-p", kPrompt, "-n", "1"};
    all.insert(all.end(), words.begin(), words.end());
    const Ended ended = run(generate(all));
    EXPECT_EXIT_CODE(ended, 2);
    EXPECT_THAT(ended.err, HasSubstr(words[0]));
  }
}

}  // namespace
}  // namespace convoy::testing
