// The text does not depend on how the model is cut: ids of the reference outputs, and the same
// bytes, for every split and chunk.
#include <map>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

struct Split {
  const char* name;
  int stages;
  const char* stage_layers;  // "" for the default
};

void PrintTo(const Split& split, std::ostream* out) {
  *out << split.stages << " stages " << split.stage_layers;
}

const json::array& short_cases() {
  static const json::value value = json::parse(read_file(bundled_model_path() / "reference.json"));
  return value.as_array();
}

const json::array& long_cases() {
  static const json::value value =
      json::parse(read_file(bundled_model_path() / "long-reference.json"));
  return value.at("cases").as_array();
}

class SplitTest : public ConvoyTest, public ::testing::WithParamInterface<Split> {
 protected:
  ProgramCall split_generate(Words words) const {
    words.insert(words.end(), {"--quiet", "--devices", cpus(GetParam().stages)});
    if (*GetParam().stage_layers != '\0')
      words.insert(words.end(), {"--stage-layers", GetParam().stage_layers});
    return generate(std::move(words));
  }
};

TEST_P(SplitTest, GivesTheIdsOfTheReferenceUpToAndWithTheStopId) {
  for (const json::value& reference : short_cases()) {
    const std::vector<int> expected = to_ids(reference.at("fp32_greedy_ids"));
    const std::string prompt = reference.at("prompt").as_string().c_str();
    const auto object = json_of(run(split_generate(
        {"--json", "--specials", "-p", prompt, "-n", std::to_string(expected.size())})));
    std::vector<int> ids = to_ids(object.at("token_ids"));
    if (!object.at("stop_id").is_null()) {
      ids.push_back(object.at("stop_id").to_number<int>());
      EXPECT_EQ(object.at("finish_reason").as_string(), "stop") << prompt;
    } else {
      EXPECT_EQ(object.at("finish_reason").as_string(), "length") << prompt;
    }
    EXPECT_EQ(ids, expected) << prompt;
    EXPECT_EQ(object.at("prompt_tokens").as_int64(),
              static_cast<int64_t>(reference.at("prompt_ids").as_array().size()))
        << prompt;
    EXPECT_EQ(object.at("stages").as_array().size(), static_cast<size_t>(GetParam().stages));
  }
}

TEST_P(SplitTest, GivesTheIdsOfTheLongReferenceWithEveryChunk) {
  for (const json::value& reference : long_cases()) {
    const std::vector<int> prompt = to_ids(reference.at("prompt_ids"));
    // Where a prompt fits one chunk of 64, larger chunks are the same run.
    const std::vector<const char*> chunks =
        prompt.size() <= 64 ? std::vector{"64"} : std::vector{"64", "128", "512"};
    for (const char* chunk : chunks) {
      const auto object =
          json_of(run(split_generate({"--json", "--prompt-ids", join_ids(prompt), "--ignore-eos",
                                      "-n", "32", "--prefill-chunk", chunk})));
      EXPECT_EQ(to_ids(object.at("token_ids")), to_ids(reference.at("fp64_greedy_ids")))
          << prompt.size() << " ids, chunk " << chunk;
    }
  }
}

// The text of one stage is the expectation: that it is right is the ids' business.
TEST_P(SplitTest, StreamsTheSameBytesAsOneStageAndAsJson) {
  const Ended one = run(generate({"--quiet", "-p", kPrompt, "-n", "64"}));
  EXPECT_EXIT_CODE(one, 0);
  EXPECT_TRUE(one.out.starts_with(", there was a little girl named Lily.")) << one.out;
  for (const char* chunk : {"64", "512"}) {
    const Ended streamed =
        run(split_generate({"-p", kPrompt, "-n", "64", "--prefill-chunk", chunk}));
    EXPECT_EXIT_CODE(streamed, 0);
    EXPECT_EQ(streamed.out, one.out) << "chunk " << chunk;
    EXPECT_EQ(streamed.err, "");
  }
  const auto object = json_of(run(split_generate({"--json", "-p", kPrompt, "-n", "64"})));
  EXPECT_EQ(object.at("text").as_string(), one.out);
}

INSTANTIATE_TEST_SUITE_P(Splits, SplitTest,
                         ::testing::Values(Split{"One", 1, ""}, Split{"Two", 2, ""},
                                           Split{"Three", 3, ""}, Split{"Twelve", 12, ""},
                                           Split{"ThreeOf1And10And1", 3, "1,10,1"},
                                           Split{"ThreeOf5And4And3", 3, "5,4,3"}),
                         [](const auto& split) { return std::string(split.param.name); });

using PrefillTest = ConvoyTest;

// 21 chunks over six stages: more than stages, link slots and step-ring run-ahead have room for at
// once.
TEST_F(PrefillTest, MoreChunksThanStagesAndSlotsFlowThroughWithTheSameIds) {
  std::vector<int> prompt;
  const std::vector<int> base = to_ids(long_cases().back().at("prompt_ids"));
  while (prompt.size() < 1300) prompt.push_back(base[prompt.size() % base.size()]);
  const Words words{"--json", "--quiet", "--prompt-ids", join_ids(prompt), "--ignore-eos",
                    "-n",     "24"};
  std::map<std::string, std::vector<int>> ids;
  for (const auto& [devices, chunk] : std::vector<std::pair<int, std::string>>{
           {1, "512"}, {1, "64"}, {6, "64"}, {2, "64"}, {6, "1344"}}) {
    Words all = words;
    all.insert(all.end(), {"--devices", cpus(devices), "--prefill-chunk", chunk});
    const auto object = json_of(run(generate(all)));
    EXPECT_EQ(object.at("prompt_tokens").as_int64(), 1300);
    ids[std::to_string(devices) + " stages, chunk " + chunk] = to_ids(object.at("token_ids"));
  }
  for (const auto& [what, got] : ids)
    EXPECT_EQ(got, ids.begin()->second) << what << " against " << ids.begin()->first;
  EXPECT_EQ(ids.begin()->second.size(), 24U);
}

}  // namespace
}  // namespace convoy::testing
