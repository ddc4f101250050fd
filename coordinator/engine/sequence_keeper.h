// Sequences from their admission on every stage to the step that releases them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "base/result.h"
#include "coordinator/engine/admission.h"
#include "coordinator/engine/pipeline.h"
#include "shared/kv/page_pool.h"
#include "shared/kv/sequence.h"

namespace convoy {

/// A sequence that every stage has admitted.
struct AdmittedSequence {
  uint64_t request = 0;
  std::unique_ptr<Sequence> sequence;  ///< null: refused
  std::optional<AdmissionRefusal> refusal;
};

/// Gives rows and page groups out and takes them back in the order of steps: both are free again
/// when every stage has passed the release entry, since only then do the workers' ledgers agree.
/// One thread uses it. Errors: a stage was lost, or the pipeline was released.
class SequenceKeeper {
 public:
  /// `pipeline`: null for one stage. All of them must outlive the keeper.
  SequenceKeeper(PagePool& pool, Admission& admission, Pipeline* pipeline)
      : pool_(pool), admission_(admission), pipeline_(pipeline) {}

  /// A fresh sequence in `row`, which no running one has, with page groups for `max_tokens`
  /// positions promised on every stage; or which stage has too few of them now.
  Result<AdmittedSequence> admit(int row, int max_tokens);
  /// Publishes the release of the sequence behind all its steps. Its row and page groups are free
  /// at the latest when the next admit() returns.
  Status retire(AdmittedSequence admitted);

 private:
  struct Retired {
    uint32_t published;  // entries up to its release
    AdmittedSequence admitted;
  };
  Status settle();

  PagePool& pool_;
  Admission& admission_;
  Pipeline* pipeline_;
  std::deque<Retired> retired_;  // oldest first
};

}  // namespace convoy
