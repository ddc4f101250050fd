// What a worker knows of page groups: who was promised how many, and which ones each row uses.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv_admission.pb.h"
#include "shared/ipc/step_entry.h"

namespace convoy {

/// Checks the coordinator's commands and steps against each other. used + reserved + free =
/// capacity after every call (checked). Commands come from the control thread and steps from the
/// main thread: every member may be called from any thread.
class KvLedger {
 public:
  /// `incarnation`: this worker's, as its Hello says. Rows of the block tables are 0..rows-1.
  KvLedger(uint64_t incarnation, int page_groups, int rows);

  /// Applies the command if it is the next one. The answer to send.
  proto::AdmissionAnswer handle(const proto::AdmissionCommand& command);

  /// Books what a step does to page groups. Deltas of a step that runs layers take free page groups
  /// of the row's promise; deltas of a tables entry may also name page groups that are in use,
  /// which are then shared. A release entry frees the rows of its lanes. The prefix cache keeps
  /// page groups, used or free, and drops what it kept. Error: a row that no request has, a page
  /// group that is not free, more of them than were promised, or one that nobody kept.
  Status apply(const ConstStepEntry& entry);

  int capacity() const { return static_cast<int>(owners_.size()); }
  int used() const;
  int reserved() const;
  int free() const;

 private:
  struct Request {
    int promised = 0;  // and not taken yet
    int row = -1;      // -1: not admitted
    bool released = false;
    std::vector<int32_t> pages;
  };
  using Requests = std::map<uint64_t, Request>;

  // nullopt: applied.
  using Problem = std::optional<std::string>;
  Problem reserve(const proto::Reserve& command, proto::AdmissionAnswer& answer);
  Problem admit(const proto::Admit& command);
  Problem retire(const proto::Retire& command);
  Status apply(StepKind kind, const BlockTableDelta& delta);
  Status take(const BlockTableDelta& delta, bool may_share);
  Status keep(int32_t page);
  Status drop(int32_t page);
  void release_row(int row);
  int free_now() const { return capacity() - used_ - reserved_; }
  void check_sum() const;

  mutable std::mutex mutex_;
  uint64_t incarnation_;
  uint64_t last_sequence_ = 0;
  proto::AdmissionAnswer last_answer_;
  std::vector<int> owners_;                      // rows that use each page group, and the cache
  std::vector<bool> kept_;                       // by the prefix cache
  std::vector<std::optional<uint64_t>> by_row_;  // the request of each row
  Requests requests_;
  int used_ = 0;
  int reserved_ = 0;
};

}  // namespace convoy
