// The step ring: what the coordinator tells one worker to run, in order, through shared memory.
//
// One producer and one consumer, kStepRingSlots entries. `published` and `consumed` are 32-bit
// counters that may wrap, each on its own cache lines, waited on with base/futex.h. An entry is
// written in place, so it costs no copy and no allocation. The layout of the region is
// StepRingRegionHeader, then the entries; an entry is StepHeader + StepLane[kMaxLanes] +
// BlockTableDelta[max_deltas] + ControlRow[max_columns], each part at a multiple of 64 bytes.
//
// A worker whose device enqueues registers the region (Device::register_host), copies `control` in
// stream order and calls release(Stream&), so that the slot is not reused before the stream has
// read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "kernels/device/device.h"
#include "shared/ipc/shared_region.h"
#include "shared/ipc/step_entry.h"

namespace convoy {

inline constexpr uint32_t kStepRingSlots = 32;
static_assert((kStepRingSlots & (kStepRingSlots - 1)) == 0,
              "a slot is sequence % slots, through the wrap");
inline constexpr uint64_t kStepRingMagic = 0x676e697270657473;  // "stepring"
inline constexpr uint32_t kStepRingVersion = 2;

struct StepRingOptions {
  uint32_t max_columns = 0;  ///< largest lanes * width
  uint32_t max_deltas = 0;   ///< most block-table deltas in one step
  uint32_t epoch = 0;
  uint32_t first_sequence = 0;  ///< tests start near the wrap
  int spin_iterations =
      0;  ///< of this end, before it sleeps: more than 0 only when processes <= cores
};

/// The first bytes of the region. Written by the writer only.
struct StepRingRegionHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slots;
  uint32_t max_columns;
  uint32_t max_deltas;
  uint32_t epoch;
  uint32_t first_sequence;
  uint32_t reserved[8];
};
static_assert(sizeof(StepRingRegionHeader) == 64);

/// Where things lie in the region: the one place that knows.
struct StepRingLayout {
  size_t lanes_offset, deltas_offset, control_offset;  ///< within an entry
  size_t entry_bytes;
  size_t region_bytes;
};
StepRingLayout step_ring_layout(uint32_t max_columns, uint32_t max_deltas);

/// The coordinator's end. One thread uses it, except close(). The region must outlive it.
class StepRingWriter {
 public:
  static size_t region_bytes(const StepRingOptions& options);

  /// Formats the region; the reader opens it afterwards.
  StepRingWriter(SharedRegion& region, const StepRingOptions& options);

  /// Waits for a free slot: nullopt when there is none after `timeout_ms` (-1: waits for ever). The
  /// header and the lanes are zeroed, but for the header's sequence and epoch and -1 as
  /// snapshot_target and pending_fold. Calling it again without publish() gives the same slot. An
  /// error when the worker's counter is not possible.
  Result<std::optional<StepEntry>> begin(int timeout_ms);
  /// Hands over the entry of the last begin(). Counts beyond the options are broken invariants.
  void publish();

  uint32_t published() const { return next_; }
  uint32_t consumed() const;
  /// Wakes the reader for good: it still gets what was published, then closed(). From any thread
  /// while no publish() runs.
  void close();
  /// A new epoch with an empty ring. The reader must be outside wait_next() and calls its reset()
  /// before the next one.
  void reset(uint32_t epoch);

 private:
  StepEntry entry(uint32_t sequence) const;

  std::byte* base_;
  std::string label_;
  StepRingOptions options_;
  StepRingLayout layout_;
  uint32_t epoch_;
  uint32_t next_;
  bool begun_ = false;
};

struct StepRingReaderOptions {
  StepLimits limits;
  int spin_iterations = 0;
};

/// The worker's end. One thread uses it. The region must outlive it.
class StepRingReader {
 public:
  /// Checks magic, version, slots and that the region holds what its options say.
  static Result<StepRingReader> open(SharedRegion& region,
                                     const StepRingReaderOptions& options = {});

  /// The next entry, checked (check_step); the same one again until release(). nullopt: the timeout
  /// passed (-1: waits for ever), or closed(). After an error the ring does not advance: the epoch
  /// is over.
  Result<std::optional<ConstStepEntry>> wait_next(int timeout_ms);
  /// The entry of the last wait_next() is done with: the writer may reuse its slot now.
  void release();
  /// As above, once `stream` has passed everything enqueued so far.
  void release(Stream& stream);

  /// The writer closed the ring and every entry was released.
  bool closed() const;
  uint32_t consumed() const { return next_; }
  uint32_t epoch() const { return epoch_; }
  const StepRingOptions& options() const { return options_; }
  /// Takes the epoch that the writer's reset() began; entries of older epochs are gone.
  void reset();

 private:
  StepRingReader(SharedRegion& region, const StepRingRegionHeader& header,
                 const StepRingReaderOptions& options);

  std::byte* base_;
  std::string label_;
  StepRingOptions options_;
  StepLimits limits_;
  StepRingLayout layout_;
  uint32_t epoch_;
  uint32_t next_;
  bool held_ = false;
};

}  // namespace convoy
