// The bundled model, and the earlier one that other fixtures were made with, against their
// reference outputs (fp32 of transformers, fp64 of an independent forward pass).

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/unit/stage/stage_pipeline.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
constexpr int kContext = 512;
constexpr float kLogitTolerance = 2e-4F;

json::value read_json(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return json::parse(text.str());
}

std::vector<int32_t> ids_of(const json::value& list) {
  return json::value_to<std::vector<int32_t>>(list);
}

StageLimits limits(int chunk = kContext) {
  return {.max_context_tokens = kContext,
          .prefill_chunk_tokens = chunk,
          .lanes = 1,
          .page_groups = kContext / kPageTokens};
}

// Runs one case: the top logits after the prompt, then the greedy ids.
void expect_case(StagePipeline& model, const json::value& test, const char* greedy_key) {
  const auto prompt = ids_of(test.at("prompt_ids"));
  Sequence sequence(model.pages(), 0, kContext);
  Sequence* const lane = &sequence;
  int columns = static_cast<int>(prompt.size());
  model.step({&lane, 1}, {&columns, 1}, prompt, PositionClass::prompt);
  const int last = columns - 1;
  const auto logits = model.logits({&last, 1});
  for (const auto& entry : test.at("last_logits_top8").as_array()) {
    EXPECT_NEAR(logits[entry.at(0).to_number<size_t>()], entry.at(1).to_number<float>(),
                kLogitTolerance);
  }
  int32_t next = model.choose(last);
  columns = 1;
  for (const int32_t wanted : ids_of(test.at(greedy_key))) {
    ASSERT_EQ(next, wanted);
    model.step({&lane, 1}, {&columns, 1}, {&next, 1}, PositionClass::generated);
    next = model.choose(0);
  }
}

class ModelReference : public ::testing::Test {
 protected:
  fs::path path_ = fs::path(CONVOY_SOURCE_DIR) / "models/convoy-stories";
  StagePipeline model_{path_,
                       {.stages = {}, .limits = limits(), .instruction_set = "", .threads = 2}};
};

TEST_F(ModelReference, ShortPromptsGiveTheReferenceIdsAndLogits) {
  const auto reference = read_json(path_ / "reference.json");
  ASSERT_EQ(reference.as_array().size(), 10U);
  for (const auto& test : reference.as_array()) {
    SCOPED_TRACE(test.at("prompt").as_string().c_str());
    expect_case(model_, test, "fp32_greedy_ids");
  }
}

TEST_F(ModelReference, PromptsOf1To300TokensGiveTheReferenceIdsAndLogits) {
  const auto reference = read_json(path_ / "long-reference.json");
  for (const auto& test : reference.at("cases").as_array()) {
    SCOPED_TRACE(test.at("prompt_ids").as_array().size());
    expect_case(model_, test, "fp64_greedy_ids");
  }
}

}  // namespace
}  // namespace convoy
