#include "coordinator/engine/sequence_keeper.h"

#include <utility>

#include "coordinator/engine/step_planner.h"

namespace convoy {

Result<AdmittedSequence> SequenceKeeper::admit(int row, int max_tokens) {
  // What has ended is free first: the workers would refuse its row and page groups.
  if (Status status = settle(); !status) return Error{status.error()};
  auto reserved = admission_.reserve((max_tokens + kPageTokens - 1) / kPageTokens);
  if (!reserved) return Error{reserved.error()};
  AdmittedSequence admitted;
  admitted.request = reserved.value().request;
  admitted.refusal = std::move(reserved.value().refusal);
  if (admitted.refusal) return admitted;
  if (Status status = admission_.admit(admitted.request, row); !status)
    return Error{status.error()};
  admitted.sequence =
      std::make_unique<Sequence>(pool_, row, max_tokens, std::move(reserved.value().pages));
  return admitted;
}

Status SequenceKeeper::retire(AdmittedSequence admitted) {
  if (pipeline_ == nullptr) return {};
  PlannedStep step;
  plan_release(*admitted.sequence, step);
  if (Status status = pipeline_->publish(step); !status) return status;
  retired_.push_back({pipeline_->published(), std::move(admitted)});
  return {};
}

Status SequenceKeeper::settle() {
  while (!retired_.empty()) {
    const Retired& oldest = retired_.front();
    if (Status status = pipeline_->wait_passed(oldest.published); !status) return status;
    if (Status status = admission_.retire(oldest.admitted.request); !status) return status;
    retired_.pop_front();
  }
  return {};
}

}  // namespace convoy
