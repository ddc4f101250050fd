#include "stage_worker/kv_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/stage_worker/ledger_step.h"

namespace convoy {
namespace {

using testing::HasSubstr;
constexpr uint64_t kLife = 77;

class KvLedgerTest : public testing::Test {
 protected:
  proto::AdmissionCommand next() {
    proto::AdmissionCommand command;
    command.set_incarnation(kLife);
    command.set_sequence(++sequence);
    return command;
  }
  proto::AdmissionAnswer reserve(uint64_t request, uint32_t pages) {
    proto::AdmissionCommand command = next();
    command.mutable_reserve()->set_request(request);
    command.mutable_reserve()->set_page_groups(pages);
    return ledger.handle(command);
  }
  proto::AdmissionAnswer admit(uint64_t request, uint32_t row) {
    proto::AdmissionCommand command = next();
    command.mutable_admit()->set_request(request);
    command.mutable_admit()->set_row(row);
    return ledger.handle(command);
  }
  proto::AdmissionAnswer retire(uint64_t request) {
    proto::AdmissionCommand command = next();
    command.mutable_retire()->set_request(request);
    return ledger.handle(command);
  }
  /// A rejected command used no number up.
  void expect_rejected(const proto::AdmissionAnswer& answer, const char* why) {
    EXPECT_THAT(answer.rejected(), HasSubstr(why));
    --sequence;
  }
  void expect_counts(int used, int reserved) {
    EXPECT_EQ(ledger.used(), used);
    EXPECT_EQ(ledger.reserved(), reserved);
    EXPECT_EQ(ledger.free(), 10 - used - reserved);
  }

  KvLedger ledger{kLife, 10, 3};
  uint64_t sequence = 0;
};

TEST_F(KvLedgerTest, APromiseBecomesPagesAndAllAreFreeAfterTheRelease) {
  EXPECT_TRUE(reserve(1, 4).applied());
  expect_counts(0, 4);
  EXPECT_TRUE(admit(1, 2).applied());
  ASSERT_TRUE(apply_step(ledger, StepKind::prefill, {2}, {{2, 0, 5}, {2, 1, 7}}).ok());
  expect_counts(2, 2);
  ASSERT_TRUE(apply_step(ledger, StepKind::decode, {2}, {{2, 2, 0}}).ok());
  expect_counts(3, 1);
  expect_rejected(retire(1), "still runs in row 2");
  ASSERT_TRUE(apply_step(ledger, StepKind::release, {2}).ok());
  expect_counts(0, 0);
  EXPECT_TRUE(retire(1).applied());
  // Its row is free for the next one.
  EXPECT_TRUE(reserve(2, 10).applied());
  EXPECT_TRUE(admit(2, 2).applied());
}

TEST_F(KvLedgerTest, TooManyPageGroupsAreRefusedWithBothNumbersAndNothingIsKept) {
  EXPECT_TRUE(reserve(1, 7).applied());
  const auto answer = reserve(2, 4);
  EXPECT_EQ(answer.refused().needed(), 4U);
  EXPECT_EQ(answer.refused().available(), 3U);
  expect_counts(0, 7);
  expect_rejected(admit(2, 0), "request 2 was promised nothing");
  expect_rejected(retire(2), "request 2 is unknown");
  EXPECT_TRUE(retire(1).applied());  // never admitted: the promise goes back
  expect_counts(0, 0);
  EXPECT_TRUE(reserve(3, 4000000000U).has_refused());
}

TEST_F(KvLedgerTest, ARepeatedCommandIsAnsweredAgainAndAppliedOnce) {
  proto::AdmissionCommand command = next();
  command.mutable_reserve()->set_request(1);
  command.mutable_reserve()->set_page_groups(6);
  EXPECT_TRUE(ledger.handle(command).applied());
  EXPECT_TRUE(ledger.handle(command).applied());
  expect_counts(0, 6);
  proto::AdmissionCommand refused = next();
  refused.mutable_reserve()->set_request(2);
  refused.mutable_reserve()->set_page_groups(6);
  EXPECT_TRUE(ledger.handle(refused).has_refused());
  EXPECT_TRUE(ledger.handle(refused).has_refused());
  EXPECT_TRUE(ledger.handle(command).applied());  // older: acknowledged
  expect_counts(0, 6);
}

TEST_F(KvLedgerTest, GapsAndOtherLivesAreRejectedAndChangeNothing) {
  proto::AdmissionCommand command;
  command.set_incarnation(kLife);
  EXPECT_THAT(ledger.handle(command).rejected(), HasSubstr("command 0 came after 0"));
  EXPECT_TRUE(reserve(1, 2).applied());
  command.set_sequence(3);
  command.mutable_retire()->set_request(1);
  EXPECT_THAT(ledger.handle(command).rejected(), HasSubstr("command 3 came after 1"));
  command.set_sequence(2);
  command.set_incarnation(kLife - 1);
  EXPECT_THAT(ledger.handle(command).rejected(), HasSubstr("incarnation 76, this is 77"));
  EXPECT_EQ(ledger.handle(command).incarnation(), kLife);
  expect_counts(0, 2);
  command.set_incarnation(kLife);
  EXPECT_TRUE(ledger.handle(command).applied());
}

TEST_F(KvLedgerTest, CommandsThatContradictTheLedgerAreRejected) {
  EXPECT_TRUE(reserve(1, 2).applied());
  expect_rejected(reserve(1, 2), "request 1 has its page groups already");
  expect_rejected(admit(1, 3), "row 3 of 3");
  EXPECT_TRUE(admit(1, 0).applied());
  expect_rejected(admit(1, 1), "runs in row 0 already");
  EXPECT_TRUE(reserve(2, 1).applied());
  expect_rejected(admit(2, 0), "row 0 is request 1's");
  expect_rejected(ledger.handle(next()), "empty");
  expect_counts(0, 3);
}

TEST_F(KvLedgerTest, StepsThatContradictTheLedgerAreErrors) {
  reserve(1, 2);
  admit(1, 0);
  reserve(2, 2);
  admit(2, 1);
  EXPECT_THAT(apply_step(ledger, StepKind::decode, {2}).error(), HasSubstr("row 2, which no"));
  EXPECT_THAT(apply_step(ledger, StepKind::decode, {3}).error(), HasSubstr("row 3, which no"));
  EXPECT_THAT(apply_step(ledger, StepKind::decode, {-1}).error(), HasSubstr("row -1, which no"));
  EXPECT_THAT(apply_step(ledger, StepKind::prefill, {0}, {{2, 0, 1}}).error(),
              HasSubstr("page group 1 for row 2"));
  EXPECT_THAT(apply_step(ledger, StepKind::prefill, {0}, {{0, 0, 10}}).error(),
              HasSubstr("page group 10 of 10"));
  ASSERT_TRUE(apply_step(ledger, StepKind::prefill, {0}, {{0, 0, 4}}).ok());
  EXPECT_THAT(apply_step(ledger, StepKind::prefill, {1}, {{1, 0, 4}}).error(),
              HasSubstr("page group 4 for request 2 is in use"));
  ASSERT_TRUE(apply_step(ledger, StepKind::decode, {0}, {{0, 1, 5}}).ok());
  EXPECT_THAT(apply_step(ledger, StepKind::decode, {0}, {{0, 2, 6}}).error(),
              HasSubstr("more than request 1 was promised"));
  ASSERT_TRUE(apply_step(ledger, StepKind::release, {0}).ok());
  EXPECT_THAT(apply_step(ledger, StepKind::release, {0}).error(), HasSubstr("row 0, which no"));
}

TEST_F(KvLedgerTest, ATablesEntrySharesAndTheLastOwnerFrees) {
  reserve(1, 2);
  admit(1, 0);
  ASSERT_TRUE(apply_step(ledger, StepKind::prefill, {0}, {{0, 0, 4}, {0, 1, 5}}).ok());
  reserve(2, 1);
  admit(2, 1);
  ASSERT_TRUE(apply_step(ledger, StepKind::tables, {}, {{1, 0, 4}}).ok());
  expect_counts(2, 1);  // a shared page group is no part of the promise
  ASSERT_TRUE(apply_step(ledger, StepKind::release, {0}).ok());
  expect_counts(1, 1);
  ASSERT_TRUE(apply_step(ledger, StepKind::release, {1}).ok());
  expect_counts(0, 0);
}

TEST_F(KvLedgerTest, WhatThePrefixCacheKeepsStaysUntilItIsDropped) {
  reserve(1, 2);
  admit(1, 0);
  ASSERT_TRUE(apply_step(ledger, StepKind::prefill, {0}, {{0, 0, 4}, {0, 1, 5}}).ok());
  ASSERT_TRUE(apply_step(ledger, StepKind::keep_pages, {}, {{0, 0, 4}}).ok());
  ASSERT_TRUE(apply_step(ledger, StepKind::release, {0}).ok());
  expect_counts(1, 0);
  reserve(2, 1);
  admit(2, 1);
  ASSERT_TRUE(apply_step(ledger, StepKind::tables, {}, {{1, 0, 4}}).ok());
  ASSERT_TRUE(apply_step(ledger, StepKind::drop_pages, {}, {{0, 0, 4}}).ok());
  expect_counts(1, 1);  // request 2 still uses it
  ASSERT_TRUE(apply_step(ledger, StepKind::release, {1}).ok());
  expect_counts(0, 0);
}

TEST_F(KvLedgerTest, PageGroupsAreKeptOnceWhileInUseAndDroppedOnce) {
  EXPECT_THAT(apply_step(ledger, StepKind::drop_pages, {}, {{0, 0, 4}}).error(),
              HasSubstr("page group 4 was not kept"));
  EXPECT_THAT(apply_step(ledger, StepKind::keep_pages, {}, {{0, 0, 10}}).error(),
              HasSubstr("page group 10 cannot be kept"));
  ASSERT_TRUE(apply_step(ledger, StepKind::keep_pages, {}, {{0, 0, 3}}).ok());  // a free one
  expect_counts(1, 0);
  ASSERT_TRUE(apply_step(ledger, StepKind::drop_pages, {}, {{0, 0, 3}}).ok());
  reserve(1, 10);
  EXPECT_THAT(apply_step(ledger, StepKind::keep_pages, {}, {{0, 0, 3}}).error(),
              HasSubstr("page group 3 cannot be kept"))
      << "all are promised";
  admit(1, 0);
  ASSERT_TRUE(apply_step(ledger, StepKind::prefill, {0}, {{0, 0, 4}}).ok());
  ASSERT_TRUE(apply_step(ledger, StepKind::keep_pages, {}, {{0, 0, 4}}).ok());
  EXPECT_THAT(apply_step(ledger, StepKind::keep_pages, {}, {{0, 0, 4}}).error(),
              HasSubstr("page group 4 cannot be kept"));
  ASSERT_TRUE(apply_step(ledger, StepKind::drop_pages, {}, {{0, 0, 4}}).ok());
  EXPECT_THAT(apply_step(ledger, StepKind::drop_pages, {}, {{0, 0, 4}}).error(),
              HasSubstr("page group 4 was not kept"));
}

}  // namespace
}  // namespace convoy
