// Runs with --kv-dtype: the same tokens over every split, and every process says what it keeps.
#include <csignal>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

using ::testing::HasSubstr;

class KvDtypeTest : public ConvoyTest {
 protected:
  json::object told(Words words) const {
    words.insert(words.end(), {"--json", "--quiet", "--ignore-eos", "-n", "80", "-p", kPrompt,
                               "--kv-dtype", "int8"});
    return json_of(run(generate(std::move(words))));
  }
};

TEST_F(KvDtypeTest, EverySplitGivesTheSameTokens) {
  // The prompt's page ends on the way, and short chunks meet in the second run.
  const json::object one = told({"--devices", "cpu"});
  EXPECT_EQ(to_ids(one.at("token_ids")).size(), 80U);
  EXPECT_EQ(one.at("kv_dtype").as_string(), "int8");
  const json::object three = told({"--devices", "cpu,cpu,cpu"});
  EXPECT_EQ(three.at("token_ids"), one.at("token_ids"));
  EXPECT_EQ(told({"--devices", cpus(2), "--stage-layers", "3,9", "-t", "1"}).at("token_ids"),
            one.at("token_ids"));
  uint64_t kv_bytes = 0;
  for (const json::value& stage : three.at("stages").as_array())
    kv_bytes += stage.at("kv_bytes").to_number<uint64_t>();
  EXPECT_EQ(kv_bytes, one.at("stages").at(0).at("kv_bytes").to_number<uint64_t>());
}

TEST_F(KvDtypeTest, LanesGiveTheTokensOfEachPromptAlone) {
  const auto batch = [&](const std::string& lines, const std::string& lanes) {
    ProgramCall call = generate({"--parallel", lanes, "--kv-dtype", "int8", "-n", "20",
                                 "--print-token-ids", "--quiet", "--devices", "cpu"});
    call.input = lines;
    return run(call).out;
  };
  EXPECT_EQ(batch("Once upon a time\nThe dog\nA\n", "3"),
            batch("Once upon a time\n", "1") + batch("The dog\n", "1") + batch("A\n", "1"));
}

TEST_F(KvDtypeTest, EveryStageSaysWhatItKeeps) {
  Process coordinator(held_generate(cpus(2), "1:decode:2", {"--kv-dtype", "int8"}));
  EXPECT_EQ(await_state(1, "held").all.at("kv_dtype").as_string(), "int8");
  EXPECT_EQ(stage(0).all.at("kv_dtype").as_string(), "int8");
  EXPECT_THAT(run(convoy({"health"})).out, HasSubstr("MiB int8"));
  coordinator.signal(SIGINT);
  coordinator.wait();
}

TEST_F(KvDtypeTest, TheSummaryNamesIt) {
  EXPECT_THAT(run(generate({"-p", kPrompt, "-n", "2", "--kv-dtype", "int8"})).err,
              HasSubstr(" int8 "));
}

}  // namespace
}  // namespace convoy::testing
