#include "shared/ipc/step_ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "base/futex.h"

namespace convoy {
namespace {

// Words lie two cache lines apart: the prefetcher fetches lines in pairs.
constexpr size_t kPublishedOffset = 128;
constexpr size_t kClosedOffset = 256;         // 1: closed, and the next word is final
constexpr size_t kLastPublishedOffset = 260;  // value of `published` when the ring was closed
constexpr size_t kConsumedOffset = 384;
constexpr size_t kEntriesOffset = 512;
// A closed ring's `published` lies this far beyond what was published, so that every wait returns.
constexpr uint32_t kClosedDistance = 1U << 30;

constexpr size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

uint32_t* word(std::byte* base, size_t offset) {
  return reinterpret_cast<uint32_t*>(base + offset);
}
uint32_t load(std::byte* base, size_t offset) {
  return std::atomic_ref<uint32_t>(*word(base, offset)).load(std::memory_order_acquire);
}
void store(std::byte* base, size_t offset, uint32_t value) {
  std::atomic_ref<uint32_t>(*word(base, offset)).store(value, std::memory_order_release);
}

StepEntry entry_at(std::byte* base, const StepRingLayout& layout, uint32_t sequence) {
  std::byte* at = base + kEntriesOffset + (sequence % kStepRingSlots) * layout.entry_bytes;
  return {reinterpret_cast<StepHeader*>(at), reinterpret_cast<StepLane*>(at + layout.lanes_offset),
          reinterpret_cast<BlockTableDelta*>(at + layout.deltas_offset),
          reinterpret_cast<ControlRow*>(at + layout.control_offset)};
}

// `published`, which a host thread writes.
bool wait_published(std::byte* base, uint32_t value, int spin, int timeout_ms) {
  uint32_t* published = word(base, kPublishedOffset);
  if (timeout_ms >= 0) return futex_wait_reached_for(published, value, spin, timeout_ms);
  futex_wait_reached(published, value, spin);
  return true;
}

// `consumed`, which a CUDA worker's stream writes: nothing wakes the host then.
bool wait_consumed(std::byte* base, uint32_t value, int spin, int timeout_ms) {
  return futex_wait_reached_polling(word(base, kConsumedOffset), value, spin, timeout_ms);
}

Error region_error(const std::string& label, const char* field, uint64_t value, uint64_t expected) {
  return Error{"step ring \"" + label + "\": " + field + " is " + std::to_string(value) +
               ", expected " + std::to_string(expected)};
}

}  // namespace

StepRingLayout step_ring_layout(uint32_t max_columns, uint32_t max_deltas) {
  StepRingLayout layout{};
  layout.lanes_offset = sizeof(StepHeader);
  layout.deltas_offset = layout.lanes_offset + sizeof(StepLane) * kMaxLanes;
  layout.control_offset =
      round_up(layout.deltas_offset + sizeof(BlockTableDelta) * size_t{max_deltas}, 64);
  layout.entry_bytes =
      round_up(layout.control_offset + sizeof(ControlRow) * size_t{max_columns}, 128);
  layout.region_bytes = kEntriesOffset + layout.entry_bytes * kStepRingSlots;
  return layout;
}

size_t StepRingWriter::region_bytes(const StepRingOptions& options) {
  return step_ring_layout(options.max_columns, options.max_deltas).region_bytes;
}

StepRingWriter::StepRingWriter(SharedRegion& region, const StepRingOptions& options)
    : base_(static_cast<std::byte*>(region.data())),
      label_(region.label()),
      options_(options),
      layout_(step_ring_layout(options.max_columns, options.max_deltas)),
      epoch_(options.epoch),
      next_(options.first_sequence) {
  CONVOY_CHECK_OP(region.bytes(), >=, layout_.region_bytes);
  StepRingRegionHeader header{};
  header.magic = kStepRingMagic;
  header.version = kStepRingVersion;
  header.slots = kStepRingSlots;
  header.max_columns = options.max_columns;
  header.max_deltas = options.max_deltas;
  header.epoch = options.epoch;
  header.first_sequence = options.first_sequence;
  std::memcpy(base_, &header, sizeof(header));
  store(base_, kClosedOffset, 0);
  store(base_, kConsumedOffset, next_);
  store(base_, kPublishedOffset, next_);
}

uint32_t StepRingWriter::consumed() const {
  return load(base_, kConsumedOffset);
}

StepEntry StepRingWriter::entry(uint32_t sequence) const {
  return entry_at(base_, layout_, sequence);
}

Result<std::optional<StepEntry>> StepRingWriter::begin(int timeout_ms) {
  const uint32_t needed = next_ - kStepRingSlots + 1;
  if (!wait_consumed(base_, needed, options_.spin_iterations, timeout_ms)) {
    return std::optional<StepEntry>();
  }
  const uint32_t consumed_now = consumed();
  if (next_ - consumed_now > kStepRingSlots) {
    return Error{"step ring \"" + label_ + "\": consumed is " + std::to_string(consumed_now) +
                 " with " + std::to_string(next_) + " published"};
  }
  const StepEntry slot = entry(next_);
  *slot.header = StepHeader{};
  slot.header->sequence = next_;
  slot.header->epoch = epoch_;
  StepLane empty{};
  empty.pending_fold = -1;
  std::fill_n(slot.lanes, kMaxLanes, empty);
  begun_ = true;
  return std::optional<StepEntry>(slot);
}

void StepRingWriter::publish() {
  CONVOY_CHECK(begun_, "publish() without begin()");
  const StepHeader& header = *entry(next_).header;
  CONVOY_CHECK_OP(header.sequence, ==, next_);
  CONVOY_CHECK_OP(header.epoch, ==, epoch_);
  CONVOY_CHECK_OP(header.lanes, <=, static_cast<uint32_t>(kMaxLanes));
  CONVOY_CHECK_OP(uint64_t{header.lanes} * header.width, <=, options_.max_columns);
  CONVOY_CHECK_OP(header.delta_count, <=, options_.max_deltas);
  CONVOY_CHECK(load(base_, kClosedOffset) == 0, "publish() on a closed ring");
  begun_ = false;
  ++next_;
  futex_store_and_wake(word(base_, kPublishedOffset), next_);
}

void StepRingWriter::close() {
  const uint32_t last = load(base_, kPublishedOffset);
  if (load(base_, kClosedOffset) != 0) return;
  store(base_, kLastPublishedOffset, last);
  store(base_, kClosedOffset, 1);
  futex_store_and_wake(word(base_, kPublishedOffset), last + kClosedDistance);
}

void StepRingWriter::reset(uint32_t epoch) {
  CONVOY_CHECK(load(base_, kClosedOffset) == 0, "reset() on a closed ring");
  begun_ = false;
  epoch_ = epoch;
  reinterpret_cast<StepRingRegionHeader*>(base_)->epoch = epoch;
  reinterpret_cast<StepRingRegionHeader*>(base_)->first_sequence = next_;
  store(base_, kConsumedOffset, next_);
  store(base_, kPublishedOffset, next_);
}

StepRingReader::StepRingReader(SharedRegion& region, const StepRingRegionHeader& header,
                               const StepRingReaderOptions& options)
    : base_(static_cast<std::byte*>(region.data())),
      label_(region.label()),
      options_{header.max_columns, header.max_deltas, header.epoch, header.first_sequence,
               options.spin_iterations},
      limits_(options.limits),
      layout_(step_ring_layout(header.max_columns, header.max_deltas)),
      epoch_(header.epoch),
      next_(header.first_sequence) {}

Result<StepRingReader> StepRingReader::open(SharedRegion& region,
                                            const StepRingReaderOptions& options) {
  const std::string& label = region.label();
  if (region.bytes() < kEntriesOffset) {
    return region_error(label, "region_bytes", region.bytes(), kEntriesOffset);
  }
  StepRingRegionHeader header{};
  std::memcpy(&header, region.data(), sizeof(header));
  if (header.magic != kStepRingMagic) {
    return region_error(label, "magic", header.magic, kStepRingMagic);
  }
  if (header.version != kStepRingVersion) {
    return region_error(label, "version", header.version, kStepRingVersion);
  }
  if (header.slots != kStepRingSlots) {
    return region_error(label, "slots", header.slots, kStepRingSlots);
  }
  const size_t needed = step_ring_layout(header.max_columns, header.max_deltas).region_bytes;
  if (region.bytes() < needed) {
    return Error{"step ring \"" + label + "\": max_columns " + std::to_string(header.max_columns) +
                 " and max_deltas " + std::to_string(header.max_deltas) + " need " +
                 std::to_string(needed) + " bytes, the region has " +
                 std::to_string(region.bytes())};
  }
  return StepRingReader(region, header, options);
}

Result<std::optional<ConstStepEntry>> StepRingReader::wait_next(int timeout_ms) {
  if (!wait_published(base_, next_ + 1, options_.spin_iterations, timeout_ms)) {
    return std::optional<ConstStepEntry>();
  }
  // `published` first: a value that close() wrote makes the closed word visible.
  const uint32_t published = load(base_, kPublishedOffset);
  const bool is_closed = load(base_, kClosedOffset) != 0;
  const uint32_t last = is_closed ? load(base_, kLastPublishedOffset) : published;
  if (is_closed && last == next_) return std::optional<ConstStepEntry>();
  if (last - next_ > kStepRingSlots) {
    return Error{"step ring \"" + label_ + "\": published is " + std::to_string(last) + " with " +
                 std::to_string(next_) + " consumed, at most " + std::to_string(kStepRingSlots) +
                 " more are possible"};
  }
  const StepEntry slot = entry_at(base_, layout_, next_);
  const ConstStepEntry entry{slot.header, slot.lanes, slot.deltas, slot.control};
  const StepExpectation expected{next_, epoch_, options_.max_columns, options_.max_deltas, limits_};
  if (const Status status = check_step(entry, expected); !status) {
    return Error{"step ring \"" + label_ + "\": " + status.error()};
  }
  held_ = true;
  return std::optional<ConstStepEntry>(entry);
}

void StepRingReader::release() {
  CONVOY_CHECK(held_, "release() without an entry");
  held_ = false;
  ++next_;
  futex_store_and_wake(word(base_, kConsumedOffset), next_);
}

void StepRingReader::release(Stream& stream) {
  CONVOY_CHECK(held_, "release() without an entry");
  held_ = false;
  ++next_;
  stream.write_value(word(base_, kConsumedOffset), next_);
}

bool StepRingReader::closed() const {
  return load(base_, kClosedOffset) != 0 && load(base_, kLastPublishedOffset) == next_;
}

void StepRingReader::reset() {
  StepRingRegionHeader header{};
  std::memcpy(&header, base_, sizeof(header));
  epoch_ = header.epoch;
  next_ = header.first_sequence;
  held_ = false;
}

}  // namespace convoy
