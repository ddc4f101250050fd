// How a request gets its page groups on every stage: the coordinator's end of
// proto/kv_admission.proto.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv_admission.pb.h"
#include "shared/kv/page_pool.h"

namespace convoy {

/// One worker's commands in order: at most one without its answer. Pure logic.
class AdmissionSender {
 public:
  explicit AdmissionSender(uint64_t incarnation) : incarnation_(incarnation) {}

  /// Numbers `command` and makes it the pending one; there must be none (checked).
  const proto::AdmissionCommand& begin(proto::AdmissionCommand command);
  /// The command without its answer, to be sent again as it is; null: none.
  const proto::AdmissionCommand* pending() const { return pending_ ? &*pending_ : nullptr; }
  /// Whether `answer` is the pending command's. Answers to older commands and of other lives are
  /// not.
  bool take(const proto::AdmissionAnswer& answer);
  /// Another life of the worker: it knows nothing of what was sent before.
  void restart(uint64_t incarnation);

 private:
  uint64_t incarnation_;
  uint64_t sequence_ = 0;
  std::optional<proto::AdmissionCommand> pending_;
};

/// Which stage cannot hold a request.
struct AdmissionRefusal {
  int rank = 0;
  std::string device;
  int needed = 0;     ///< page groups
  int available = 0;  ///< now
  std::string message() const;
};

/// Owns the conversations with all workers. One thread uses it.
class Admission {
 public:
  struct Stage {
    int rank = 0;
    std::string device;
    uint64_t incarnation = 0;  ///< workers
  };
  /// Sends one command to each worker, by rank - 1 (an empty one: nothing to send), and gives their
  /// answers in the same order. Error: a stage was lost, or the wait was given up.
  using Exchange = std::function<Result<std::vector<proto::AdmissionAnswer>>(
      const std::vector<const proto::AdmissionCommand*>& commands)>;

  /// `pool` is rank 0's ledger. `stages`: by rank, rank 0 included.
  Admission(PagePool& pool, std::vector<Stage> stages, Exchange exchange);

  struct Reserved {
    uint64_t request = 0;
    PageReservation pages;                    ///< of rank 0's pool
    std::optional<AdmissionRefusal> refusal;  ///< of the stage with least; then nothing is promised
  };
  /// Promises page groups to a new request on every stage, or on none.
  Result<Reserved> reserve(int page_groups);
  /// The request may run in `row` of the block tables.
  Status admit(uint64_t request, int row);
  /// The request is over: released by a step, or never admitted.
  Status retire(uint64_t request);

 private:
  using Answers = std::vector<proto::AdmissionAnswer>;
  /// Tells the workers that `wanted` names, by rank - 1. After an error every call is one.
  Result<Answers> tell(const proto::AdmissionCommand& command, const std::vector<bool>& wanted);
  Status tell_all(const proto::AdmissionCommand& command);
  std::vector<bool> everyone() const { return std::vector<bool>(senders_.size(), true); }

  PagePool& pool_;
  std::vector<Stage> stages_;
  Exchange exchange_;
  std::vector<AdmissionSender> senders_;  // by rank - 1
  uint64_t requests_ = 0;
};

}  // namespace convoy
