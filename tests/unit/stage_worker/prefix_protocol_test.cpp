// Sequences that share prefixes, on three ledgers and the coordinator's pool at once, against a
// model of what every page group and every state slot holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "coordinator/engine/admission.h"
#include "coordinator/engine/sequence_keeper.h"
#include "coordinator/engine/step_planner.h"
#include "shared/kv/prefix_cache.h"
#include "tests/unit/stage_worker/ledger_step.h"

namespace convoy {
namespace {

constexpr int kPages = 48;
constexpr int kRows = 3;
constexpr int kImages = 5;
constexpr int kMaxTokens = 8 * kPageTokens;

using Tokens = std::vector<int32_t>;

struct Running {
  uint64_t request = 0;
  std::unique_ptr<Sequence> sequence;
  Tokens ids;  // what its pages hold
};

class PrefixProtocol : public ::testing::Test {
 protected:
  PrefixProtocol() {
    std::vector<Admission::Stage> stages{{.rank = 0, .device = "cpu"}};
    for (int rank = 1; rank <= 3; ++rank) {
      ledgers_.push_back(std::make_unique<KvLedger>(uint64_t{9}, kPages, kRows));
      stages.push_back({.rank = rank, .device = "cpu", .incarnation = 9});
    }
    admission_ = std::make_unique<Admission>(
        pool_, stages, [this](const auto& commands) -> Result<std::vector<proto::AdmissionAnswer>> {
          std::vector<proto::AdmissionAnswer> answers;
          for (size_t i = 0; i < commands.size(); ++i)
            answers.push_back(commands[i] != nullptr ? ledgers_[i]->handle(*commands[i])
                                                     : proto::AdmissionAnswer());
          return answers;
        });
  }

  void apply(StepKind kind, const std::vector<int>& rows,
             const std::vector<BlockTableDelta>& deltas) {
    for (const auto& ledger : ledgers_) {
      const Status status = apply_step(*ledger, kind, rows, deltas);
      ASSERT_TRUE(status.ok()) << status.error();
    }
  }
  void publish_changes() {
    for (const CacheChange& change : cache_.take_changes()) {
      switch (change.kind) {
        case CacheChange::Kind::keep:
          apply(StepKind::keep_pages, {}, {{0, 0, change.to}});
          break;
        case CacheChange::Kind::drop:
          apply(StepKind::drop_pages, {}, {{0, 0, change.to}});
          break;
        case CacheChange::Kind::copy_page:
          apply(StepKind::copy_pages, {}, {{0, change.from, change.to}});
          page_content_[change.to] = page_content_.at(change.from);
          break;
        case CacheChange::Kind::copy_state:
          apply(StepKind::copy_states, {}, {{0, change.from, change.to}});
          slots_[change.to] = slots_.at(change.from);
          break;
      }
    }
  }

  // As a step computes: reads the state before it and the pages, writes pages and state.
  void compute(Running& running, const Tokens& more, PositionClass position_class, int32_t target) {
    Sequence* const lane = running.sequence.get();
    const int columns = static_cast<int>(more.size());
    ASSERT_TRUE(plan_step({&lane, 1}, {&columns, 1}, position_class, step_, target).ok());
    apply(step_.kind, {lane->lane()}, step_.deltas);
    const int32_t source = step_.lanes[0].state_source;
    ASSERT_EQ(source < 0 ? Tokens{} : slots_.at(source), running.ids) << "slot " << source;
    const auto begin = static_cast<int>(running.ids.size());
    for (int block = 0; block < begin / kPageTokens; ++block) expect_page(running, block);
    running.ids.insert(running.ids.end(), more.begin(), more.end());
    for (int block = begin / kPageTokens; block < lane->pages(); ++block) {
      const auto end = std::min<size_t>(running.ids.size(), size_t(block + 1) * kPageTokens);
      page_content_[lane->page_groups()[static_cast<size_t>(block)]] = {
          running.ids.begin(), running.ids.begin() + static_cast<ptrdiff_t>(end)};
    }
    slots_[step_.lanes[0].state_destination] = running.ids;
  }
  void expect_page(const Running& running, int block) {
    const int32_t page = running.sequence->page_groups()[static_cast<size_t>(block)];
    ASSERT_EQ(page_content_.at(page),
              Tokens(running.ids.begin(), running.ids.begin() + (block + 1) * kPageTokens))
        << "page group " << page;
  }

  Tokens random_prompt() {
    Tokens ids;
    const auto blocks = 1 + random_() % 4;
    for (size_t b = 0; b < blocks; ++b) {
      const auto which = static_cast<int32_t>(random_() % 3);
      for (int i = 0; i < kPageTokens; ++i) ids.push_back(which * 100 + i);
    }
    ids.resize(ids.size() - random_() % 3 * 20, 0);
    return ids;
  }

  bool admit(int row, Running& running, const Tokens& ids) {
    const PrefixHit hit = cache_.find(ids);
    hits_ += hit.tokens > 0;
    const int tokens = std::min<int>(kMaxTokens, static_cast<int>(ids.size() + random_() % 200));
    const int needed =
        (tokens + kPageTokens - 1) / kPageTokens - static_cast<int>(hit.pages.size());
    cache_.make_room(needed);
    publish_changes();
    auto reserved = admission_->reserve(needed);
    EXPECT_TRUE(reserved.ok()) << reserved.error();
    if (reserved.value().refusal) return false;
    running.request = reserved.value().request;
    EXPECT_TRUE(admission_->admit(running.request, row).ok());
    running.sequence =
        std::make_unique<Sequence>(pool_, row, tokens, std::move(reserved.value().pages));
    std::vector<BlockTableDelta> deltas;
    if (hit.tokens > 0) {
      running.sequence->adopt(hit.pages, hit.state_slot, deltas);
      apply(StepKind::tables, {}, deltas);
      running.ids.assign(ids.begin(), ids.begin() + hit.tokens);
    }
    prefill(running, ids, hit);
    return true;
  }

  void prefill(Running& running, const Tokens& ids, const PrefixHit& hit) {
    std::vector<StateImage> images;
    const auto length = static_cast<int>(ids.size());
    for (const int at : image_places(length, hit, {}, 2 * kPageTokens)) {
      if (images.size() == kImages / 2 || cache_.has_image(ids, at)) continue;
      if (const auto slot = cache_.take_slot()) images.push_back({at, *slot});
    }
    std::sort(images.begin(), images.end(),
              [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
    publish_changes();
    const auto part = [&](int from, int to) {
      return Tokens(ids.begin() + from, ids.begin() + to);
    };
    for (const StateImage& image : images) {
      const int from = running.sequence->length();
      const bool last = image.tokens == length;
      compute(running, part(from, image.tokens), PositionClass::prompt, last ? -1 : image.slot);
      if (last) slots_[image.slot] = running.ids;  // a snapshot
    }
    if (running.sequence->length() < length)
      compute(running, part(running.sequence->length(), length), PositionClass::prompt, -1);
    cache_.insert(ids, running.sequence->page_groups(), images);
    publish_changes();
  }

  void release(Running& running) {
    plan_release(*running.sequence, step_);
    apply(step_.kind, {step_.lanes[0].kv_row}, {});
    running.sequence.reset();
    ASSERT_TRUE(admission_->retire(running.request).ok());
    running.ids.clear();
  }

  std::mt19937 random_{21};
  PagePool pool_{kPages};
  PrefixCache cache_{pool_,
                     {.first_slot = 2 * kRows,
                      .slots = kImages,
                      .first_host_slot = 100,
                      .host_slots = 6,
                      .first_host_page = kPages,
                      .host_pages = 16}};
  std::vector<std::unique_ptr<KvLedger>> ledgers_;
  std::unique_ptr<Admission> admission_;
  PlannedStep step_;
  std::map<int32_t, Tokens> page_content_;  // what the last write left there
  std::map<int32_t, Tokens> slots_;
  int hits_ = 0;
};

TEST_F(PrefixProtocol, EveryStageAgreesAndNobodyReadsWhatIsNotItsOwn) {
  std::vector<Running> rows(kRows);
  int refusals = 0;
  for (int i = 0; i < 10'000; ++i) {
    const auto row = static_cast<int>(random_() % kRows);
    Running& running = rows[static_cast<size_t>(row)];
    if (!running.sequence) {
      refusals += !admit(row, running, random_prompt());
    } else if (random_() % 5 == 0) {
      release(running);
    } else if (running.sequence->length() < running.sequence->max_tokens()) {
      compute(running, {static_cast<int32_t>(10'000 + i)}, PositionClass::generated, -1);
    }
    for (const auto& ledger : ledgers_) {
      ASSERT_EQ(ledger->used(), pool_.used());
      ASSERT_EQ(ledger->reserved(), pool_.reserved());
      ASSERT_EQ(ledger->free(), pool_.free());
    }
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(hits_, 500);
  EXPECT_GT(cache_.stats().evictions, 200U);
  EXPECT_GT(cache_.stats().restored, 100U);
  for (Running& running : rows) {
    if (running.sequence) release(running);
  }
  (void)cache_.find(Tokens{1});
  cache_.make_room(kPages);
  publish_changes();
  for (const auto& ledger : ledgers_) EXPECT_EQ(ledger->free(), kPages);
}

TEST(ImagePlaces, AreBeforeTheLastTokenAtTheEndAtBranchesAtTurnsAndOnALadder) {
  const std::vector<int> turns{3, 130, 700};
  EXPECT_EQ(image_places(1000, {}, turns, 128), (std::vector<int>{960, 640, 128, 256, 512}));
  EXPECT_EQ(image_places(1024, {}, {}, 512), (std::vector<int>{960, 1024, 512}));
  EXPECT_EQ(image_places(1025, {}, {}, 512), (std::vector<int>{1024, 512}));
  EXPECT_EQ(image_places(64, {}, {}, 512), (std::vector<int>{64}));
  EXPECT_EQ(image_places(63, {}, turns, 512), (std::vector<int>{}));
  const PrefixHit branch{.tokens = 128, .pages = {}, .state_slot = 1, .known_tokens = 576};
  EXPECT_EQ(image_places(700, branch, {}, 128), (std::vector<int>{640, 576, 256, 512}));
}

}  // namespace
}  // namespace convoy
