// Decoding before the host knows the last token gives the tokens that decoding after it gives.
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/engine/engine.h"
#include "coordinator/sampling/sampler.h"
#include "shared/stage/open_device.h"

namespace convoy {
namespace {

constexpr const char* kModel = CONVOY_SOURCE_DIR "/models/convoy-stories";
const std::vector<int32_t> kPrompt{423, 434, 258, 395};

class DecodeAhead : public testing::Test {
 protected:
  DecodeAhead()
      : checkpoint_(Checkpoint::open(kModel)),
        device_(open_device("cpu", 1)),
        plan_(make_stage_plan(checkpoint_.config(), request())),
        engine_({.device = *device_,
                 .checkpoint = checkpoint_,
                 .plan = plan_,
                 .health = health_,
                 .hold = hold_,
                 .valid_vocab = checkpoint_.config().vocab_size},
                {}) {
    engine_.prepare(true);
  }

  static PlanRequest request() {
    PlanRequest request;
    request.devices = {{DeviceKind::cpu, "cpu"}};
    request.max_context_tokens = 256;
    request.prefill_chunk_tokens = 64;
    return request;
  }

  // How the token at `index` is drawn.
  DrawRule rule(size_t index) const {
    return sampling_.rule(index, checkpoint_.config().vocab_size);
  }

  // `count` tokens, each decoded once the one before is known. Each must be what a sampler draws
  // of the logits.
  std::vector<int32_t> one_by_one(int count) {
    Sequence sequence(engine_.pages(), 0, 256);
    Sequence* const lane = &sequence;
    Sampler sampler(sampling_, checkpoint_.config().vocab_size);
    std::vector<float> logits(static_cast<size_t>(engine_.vocab_size()));
    std::vector<int32_t> ids{engine_.prefill(sequence, kPrompt, {}, rule(0)).value()};
    for (;;) {
      engine_.copy_logits(0, logits);
      EXPECT_EQ(sampler.draw(logits, ids.size() - 1).value(), ids.back());
      if (static_cast<int>(ids.size()) == count) return ids;
      int32_t next = ids.back();
      const DrawRule how = rule(ids.size());
      EXPECT_TRUE(engine_.decode({&lane, 1}, {&next, 1}, {&next, 1}, {&how, 1}).ok());
      ids.push_back(next);
    }
  }

  // The same with kDecodeAhead steps in flight, of which the last stay there.
  std::vector<int32_t> ahead(int count) {
    Sequence sequence(engine_.pages(), 0, 256);
    Sequence* const lane = &sequence;
    std::vector<int32_t> ids{engine_.prefill(sequence, kPrompt, {}, rule(0)).value()};
    size_t in_flight = 0;
    while (static_cast<int>(ids.size()) < count) {
      for (; in_flight < Engine::kDecodeAhead; ++in_flight) {
        const DrawRule how = rule(ids.size() + in_flight);
        EXPECT_TRUE(engine_.decode_ahead({&lane, 1}, {}, {&how, 1}).ok());
      }
      int32_t next = -1;
      EXPECT_TRUE(engine_.wait_decoded({&next, 1}).ok());
      --in_flight;
      ids.push_back(next);
    }
    return ids;
  }

  Checkpoint checkpoint_;
  std::unique_ptr<Device> device_;
  StagePlan plan_;
  HealthState health_;
  HoldPoint hold_;
  Engine engine_;
  SamplingOptions sampling_{.greedy = true};
};

TEST_F(DecodeAhead, GivesTheSameTokens) {
  const auto want = one_by_one(60);
  EXPECT_EQ(ahead(60), want);
}

TEST_F(DecodeAhead, DrawsTheSameTokens) {
  const auto greedy = one_by_one(60);
  for (const SamplingOptions& sampling :
       {SamplingOptions{.temperature = 0.8, .top_k = 20, .top_p = 0.95, .seed = 7},
        SamplingOptions{.temperature = 1.2, .seed = 8},
        SamplingOptions{.temperature = 1.0, .top_p = 0.9, .min_p = 0.02, .seed = 9}}) {
    sampling_ = sampling;
    const auto want = one_by_one(60);
    EXPECT_NE(want, greedy);
    EXPECT_EQ(ahead(60), want);
  }
}

TEST_F(DecodeAhead, StepsThatNobodyWaitedForLeaveTheNextTextAlone) {
  const auto want = one_by_one(20);
  for (const int stopped_at : {2, 3, 7}) {
    ahead(stopped_at);
    EXPECT_EQ(engine_.pages().used(), 0);
    EXPECT_EQ(one_by_one(20), want) << "after a text that ended at " << stopped_at;
    EXPECT_EQ(ahead(20), want);
  }
}

}  // namespace
}  // namespace convoy
