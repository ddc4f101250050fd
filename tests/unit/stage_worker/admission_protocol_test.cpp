// Both ends of the admission protocol over a channel that loses, repeats and delays, with workers
// that begin new lives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "coordinator/engine/admission.h"
#include "coordinator/engine/step_planner.h"
#include "tests/unit/stage_worker/ledger_step.h"

namespace convoy {
namespace {

using testing::HasSubstr;

constexpr int kPages = 23;
constexpr int kRows = 4;

/// A worker behind a bad line.
class FarWorker {
 public:
  FarWorker(uint64_t life, std::mt19937& random) : random_(random) { begin_life(life); }
  void begin_life(uint64_t life) { ledger_ = std::make_unique<KvLedger>(life, kPages, kRows); }
  KvLedger& ledger() { return *ledger_; }

  /// One delivery of what may arrive now: the command, or an older one that was late, or nothing.
  /// Answers get lost and late as well.
  std::optional<proto::AdmissionAnswer> deliver(const proto::AdmissionCommand& command) {
    late_commands_.push_back(command);
    while (late_commands_.size() > 6) late_commands_.pop_front();
    if (random_() % 4 == 0) return std::nullopt;  // lost
    const auto& arrived =
        random_() % 3 == 0 ? late_commands_[random_() % late_commands_.size()] : command;
    late_answers_.push_back(ledger_->handle(arrived));
    while (late_answers_.size() > 6) late_answers_.pop_front();
    if (random_() % 4 == 0) return std::nullopt;
    return random_() % 3 == 0 ? late_answers_[random_() % late_answers_.size()]
                              : late_answers_.back();
  }

 private:
  std::mt19937& random_;
  std::unique_ptr<KvLedger> ledger_;
  std::deque<proto::AdmissionCommand> late_commands_;
  std::deque<proto::AdmissionAnswer> late_answers_;
};

TEST(AdmissionProtocol, EveryCommandIsAppliedOnceWhateverTheLineAndTheWorkerDo) {
  std::mt19937 random(5);
  uint64_t life = 1;
  FarWorker worker(life, random);
  AdmissionSender sender(life);
  std::map<uint64_t, int> promised;  // what the ledger must hold
  uint64_t requests = 0;
  int refusals = 0, repeats = 0;
  for (int round = 0; round < 4000; ++round) {
    if (random() % 12 == 0) {
      // In the middle of a command, too.
      if (random() % 2 == 0) {
        proto::AdmissionCommand command;
        command.mutable_reserve()->set_request(++requests);
        command.mutable_reserve()->set_page_groups(1);
        worker.deliver(sender.begin(command));
      }
      worker.begin_life(++life);
      sender.restart(life);
      promised.clear();
    }
    proto::AdmissionCommand command;
    if (promised.empty() || random() % 2 == 0) {
      command.mutable_reserve()->set_request(++requests);
      command.mutable_reserve()->set_page_groups(static_cast<uint32_t>(random() % 9));
    } else {
      auto which = promised.begin();
      std::advance(which, static_cast<ptrdiff_t>(random() % promised.size()));
      command.mutable_retire()->set_request(which->first);
    }
    int sum = 0;
    for (const auto& [id, count] : promised) sum += count;
    sender.begin(command);
    for (int tries = 0; sender.pending() != nullptr; ++tries) {
      ASSERT_LT(tries, 1000);
      repeats += tries > 0 ? 1 : 0;
      const auto answer = worker.deliver(*sender.pending());
      if (!answer || !sender.take(*answer)) continue;
      ASSERT_FALSE(answer->has_rejected()) << answer->rejected();
      if (command.has_retire()) {
        promised.erase(command.retire().request());
      } else {
        const auto pages = static_cast<int>(command.reserve().page_groups());
        ASSERT_EQ(answer->has_refused(), pages > kPages - sum);
        if (answer->has_refused()) {
          ++refusals;
          ASSERT_EQ(static_cast<int>(answer->refused().available()), kPages - sum);
        } else {
          promised[command.reserve().request()] = pages;
        }
      }
    }
    sum = 0;
    for (const auto& [id, count] : promised) sum += count;
    ASSERT_EQ(worker.ledger().reserved(), sum);
    ASSERT_EQ(worker.ledger().used() + worker.ledger().reserved() + worker.ledger().free(), kPages);
  }
  EXPECT_GT(refusals, 100);
  EXPECT_GT(repeats, 1000);
}

/// A coordinator with its pool, and workers with theirs.
struct Ranks {
  explicit Ranks(int workers) : pool(kPages) {
    std::vector<Admission::Stage> stages{{.rank = 0, .device = "cpu", .incarnation = 0}};
    for (int i = 1; i <= workers; ++i) {
      far.push_back(std::make_unique<FarWorker>(static_cast<uint64_t>(i), random));
      stages.push_back({.rank = i, .device = "cpu", .incarnation = static_cast<uint64_t>(i)});
    }
    admission.emplace(pool, stages, [this](const auto& commands) { return exchange(commands); });
  }
  // What WorkerPool does over sockets, with repeats until each answer is there.
  Result<std::vector<proto::AdmissionAnswer>> exchange(
      const std::vector<const proto::AdmissionCommand*>& commands) {
    std::vector<proto::AdmissionAnswer> answers(commands.size());
    for (size_t i = 0; i < commands.size(); ++i) {
      if (commands[i] == nullptr) continue;
      for (;;) {
        const auto answer = far[i]->deliver(*commands[i]);
        if (!answer || answer->sequence() != commands[i]->sequence()) continue;
        answers[i] = *answer;
        break;
      }
    }
    return answers;
  }
  std::mt19937 random{6};
  PagePool pool;
  std::vector<std::unique_ptr<FarWorker>> far;
  std::optional<Admission> admission;
};

TEST(AdmissionProtocol, AllRanksAgreeOverRandomAdmissionsStepsAndReleases) {
  Ranks ranks(3);
  struct Running {
    uint64_t request;
    std::unique_ptr<Sequence> sequence;
  };
  std::vector<Running> rows(kRows);
  PlannedStep step;
  int refusals = 0, admitted = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto row = static_cast<int>(ranks.random() % kRows);
    Running& running = rows[static_cast<size_t>(row)];
    if (!running.sequence) {
      const int tokens = static_cast<int>(1 + ranks.random() % 700);
      auto reserved = ranks.admission->reserve((tokens + kPageTokens - 1) / kPageTokens);
      ASSERT_TRUE(reserved.ok()) << reserved.error();
      if (reserved.value().refusal) {
        ++refusals;
        EXPECT_EQ(reserved.value().refusal->rank, 0);
      } else if (ranks.random() % 5 == 0) {
        ASSERT_TRUE(ranks.admission->retire(reserved.value().request).ok());  // never runs
      } else {
        running.request = reserved.value().request;
        ASSERT_TRUE(ranks.admission->admit(running.request, row).ok());
        running.sequence =
            std::make_unique<Sequence>(ranks.pool, row, tokens, std::move(reserved.value().pages));
        ++admitted;
      }
    } else if (ranks.random() % 8 == 0) {
      plan_release(*running.sequence, step);
      for (const auto& far : ranks.far)
        ASSERT_TRUE(apply_step(far->ledger(), step.kind, {step.lanes[0].kv_row}).ok());
      running.sequence.reset();
      ASSERT_TRUE(ranks.admission->retire(running.request).ok());
    } else {
      const int room = running.sequence->max_tokens() - running.sequence->length();
      const int columns = std::min(room, static_cast<int>(1 + ranks.random() % 200));
      if (columns == 0) continue;
      Sequence* const lane = running.sequence.get();
      // A promised page group is always there.
      ASSERT_TRUE(plan_step({&lane, 1}, {&columns, 1}, PositionClass::prompt, step).ok());
      for (const auto& far : ranks.far)
        ASSERT_TRUE(apply_step(far->ledger(), step.kind, {row}, step.deltas).ok());
    }
    for (const auto& far : ranks.far) {
      ASSERT_EQ(far->ledger().used(), ranks.pool.used());
      ASSERT_EQ(far->ledger().reserved(), ranks.pool.reserved());
      ASSERT_EQ(far->ledger().free(), ranks.pool.free());
    }
  }
  EXPECT_GT(refusals, 50);
  EXPECT_GT(admitted, 200);
}

TEST(Admission, AStageWithLessRefusesAndTheOthersTakeTheirPromiseBack) {
  PagePool pool(10);
  std::vector<std::unique_ptr<KvLedger>> ledgers;
  std::vector<Admission::Stage> stages{{.rank = 0, .device = "cpu"}};
  for (const int pages : {10, 4, 6}) {
    const int rank = static_cast<int>(stages.size());
    ledgers.push_back(std::make_unique<KvLedger>(uint64_t{9}, pages, 1));
    stages.push_back({.rank = rank, .device = "cuda:" + std::to_string(rank), .incarnation = 9});
  }
  Admission admission(
      pool, stages, [&](const auto& commands) -> Result<std::vector<proto::AdmissionAnswer>> {
        if (commands[0] != nullptr && commands[0]->sequence() == 4) return Error{"stage 2 died"};
        std::vector<proto::AdmissionAnswer> answers;
        for (size_t i = 0; i < commands.size(); ++i)
          answers.push_back(commands[i] != nullptr ? ledgers[i]->handle(*commands[i])
                                                   : proto::AdmissionAnswer());
        return answers;
      });
  const auto refused = admission.reserve(7);
  ASSERT_TRUE(refused.ok());
  ASSERT_TRUE(refused.value().refusal);
  EXPECT_EQ(refused.value().refusal->message(),
            "stage 2 (cuda:2) has 4 page groups free, 7 are needed");
  for (const auto& ledger : ledgers) EXPECT_EQ(ledger->reserved(), 0);
  EXPECT_EQ(pool.free(), 10);
  const auto granted = admission.reserve(4);
  ASSERT_TRUE(granted.ok());
  EXPECT_FALSE(granted.value().refusal);
  EXPECT_EQ(granted.value().pages.count(), 4);
  for (const auto& ledger : ledgers) EXPECT_EQ(ledger->reserved(), 4);

  EXPECT_EQ(admission.admit(granted.value().request, 0).error(), "stage 2 died");
  EXPECT_THAT(admission.admit(granted.value().request, 0).error(), HasSubstr("has no answer"));
}

TEST(AdmissionSender, AnswersOfOtherLivesAndOtherCommandsAreNotItsOwn) {
  AdmissionSender sender(3);
  EXPECT_EQ(sender.pending(), nullptr);
  EXPECT_EQ(sender.begin({}).sequence(), 1U);
  EXPECT_DEATH(sender.begin({}), "command 1 has no answer yet");
  proto::AdmissionAnswer answer;
  answer.set_incarnation(2);
  answer.set_command_incarnation(3);
  answer.set_sequence(1);
  EXPECT_FALSE(sender.take(answer));
  answer.set_incarnation(3);
  answer.set_command_incarnation(2);  // a rejection of what another life was told
  EXPECT_FALSE(sender.take(answer));
  answer.set_command_incarnation(3);
  answer.set_sequence(0);
  EXPECT_FALSE(sender.take(answer));
  answer.set_sequence(1);
  EXPECT_TRUE(sender.take(answer));
  EXPECT_FALSE(sender.take(answer));  // once
  EXPECT_EQ(sender.begin({}).sequence(), 2U);
  sender.restart(4);
  EXPECT_EQ(sender.pending(), nullptr);
  EXPECT_EQ(sender.begin({}).sequence(), 1U);
  EXPECT_EQ(sender.pending()->incarnation(), 4U);
}

}  // namespace
}  // namespace convoy
