#include "shared/ipc/stage_link.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/futex.h"
#include "shared/ipc/link_exchange.h"

namespace convoy {
namespace {

// Words lie two cache lines apart: the prefetcher fetches lines in pairs.
constexpr size_t kFilledOffset = 128;
constexpr size_t kDrainedOffset = 256;
constexpr size_t kHeadersOffset = 512;
constexpr size_t kExchangeOffset = kHeadersOffset + kLinkHeaders * sizeof(LinkHeader);
constexpr size_t kEventsOffset = kExchangeOffset + sizeof(LinkExchange);
constexpr size_t kAlignment = 256;
static_assert(kEventsOffset % kAlignment == 0);
constexpr size_t kPayloadOffset = kAlignment;  // within a slot, after the live words
static_assert(kMaxLanes * sizeof(uint32_t) <= kPayloadOffset);
// Every wait of an epoch lies less than this beyond the next transfer.
constexpr uint32_t kReleaseDistance = 1U << 30;

constexpr size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}
size_t slot_bytes(size_t payload_bytes) {
  return kPayloadOffset + round_up(payload_bytes, kAlignment);
}
// After the event handles: one for each slot and side.
size_t slots_offset(uint32_t slots) {
  return kEventsOffset + round_up(2 * slots * sizeof(IpcHandle), kAlignment);
}

void check_options(const StageLinkOptions& options) {
  CONVOY_CHECK_OP(options.slots, >=, 1U);
  CONVOY_CHECK_OP(options.slots, <=, kLinkHeaders - 2 * kMaxLinkAhead);
  CONVOY_CHECK_OP(options.payload_bytes, <=, std::numeric_limits<size_t>::max() / 256);
}

std::optional<Error> check_region(const SharedRegion& region, const StageLinkOptions& options) {
  const std::string name = "stage link \"" + region.label() + "\": ";
  const size_t needed = stage_link_region_bytes(options);
  if (region.bytes() < needed) {
    return Error{name + "the region has " + std::to_string(region.bytes()) + " bytes, " +
                 std::to_string(needed) + " are needed"};
  }
  StageLinkRegionHeader header{};
  std::memcpy(&header, region.data(), sizeof(header));
  const auto differs = [&name](const char* field, uint64_t value, uint64_t expected) {
    return Error{name + field + " is " + std::to_string(value) + ", expected " +
                 std::to_string(expected)};
  };
  if (header.magic != kStageLinkMagic) return differs("magic", header.magic, kStageLinkMagic);
  if (header.version != kStageLinkVersion) {
    return differs("version", header.version, kStageLinkVersion);
  }
  if (header.slots != options.slots) return differs("slots", header.slots, options.slots);
  if (header.payload_bytes != options.payload_bytes) {
    return differs("payload_bytes", header.payload_bytes, options.payload_bytes);
  }
  if (header.epoch != options.start.epoch) {
    return differs("epoch", header.epoch, options.start.epoch);
  }
  if (header.first_transfer != options.start.first_transfer) {
    return differs("first_transfer", header.first_transfer, options.start.first_transfer);
  }
  if (header.wish != static_cast<uint32_t>(options.wish)) {
    return differs("wish", header.wish, static_cast<uint32_t>(options.wish));
  }
  if (header.doorbell != static_cast<uint32_t>(options.doorbell)) {
    return differs("doorbell", header.doorbell, static_cast<uint32_t>(options.doorbell));
  }
  return std::nullopt;
}

// `filled` once piece `piece` of `count` is there; the last piece completes the transfer.
uint32_t filled_value(uint32_t transfer, uint32_t piece, uint32_t count) {
  return transfer * kLinkPieces + (piece + 1 == count ? kLinkPieces : piece + 1);
}

}  // namespace

const char* link_transport_name(LinkTransport transport) {
  switch (transport) {
    case LinkTransport::pinned:
      return "pinned";
    case LinkTransport::peer:
      return "peer";
    case LinkTransport::local:
      return "local";
  }
  return "unknown";
}

LinkPieces link_pieces(size_t payload_bytes) {
  const size_t count = std::clamp<size_t>(payload_bytes / kLinkPieceBytes, 1, kLinkPieces);
  if (count == 1) return {1, payload_bytes};
  return {static_cast<uint32_t>(count), payload_bytes / count / kAlignment * kAlignment};
}

size_t link_header_offset(uint32_t transfer) {
  return kHeadersOffset + transfer % kLinkHeaders * sizeof(LinkHeader);
}

size_t device_slots_bytes(const StageLinkOptions& options) {
  return options.slots * slot_bytes(options.payload_bytes);
}

size_t stage_link_region_bytes(const StageLinkOptions& options) {
  check_options(options);
  return slots_offset(options.slots) + device_slots_bytes(options);
}

void format_stage_link(SharedRegion& region, const StageLinkOptions& options) {
  CONVOY_CHECK_OP(region.bytes(), >=, stage_link_region_bytes(options));
  StageLinkRegionHeader header{};
  header.magic = kStageLinkMagic;
  header.version = kStageLinkVersion;
  header.slots = options.slots;
  header.payload_bytes = options.payload_bytes;
  header.epoch = options.start.epoch;
  header.first_transfer = options.start.first_transfer;
  header.wish = static_cast<uint32_t>(options.wish);
  header.doorbell = static_cast<uint32_t>(options.doorbell);
  auto* base = static_cast<std::byte*>(region.data());
  std::memcpy(base, &header, sizeof(header));
  const auto store = [base](size_t offset, uint32_t value) {
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(base + offset))
        .store(value, std::memory_order_release);
  };
  store(kFilledOffset, options.start.first_transfer * kLinkPieces);
  store(kDrainedOffset, options.start.first_transfer);
}

StageLinkEnd::StageLinkEnd(Side side, SharedRegion& region, const StageLinkOptions& options,
                           Device* device)
    : side_(side),
      base_(static_cast<std::byte*>(region.data())),
      label_(region.label()),
      options_(options),
      device_(device),
      inline_stream_(device == nullptr || device->kind() == DeviceKind::cpu),
      slots_(base_ + slots_offset(options.slots)),
      shared_(std::make_unique<Shared>()) {
  shared_->next.store(options.start.first_transfer, std::memory_order_relaxed);
  if (device != nullptr) registration_ = device->register_host(region.data(), region.bytes());
}

uint32_t* StageLinkEnd::filled() const {
  return reinterpret_cast<uint32_t*>(base_ + kFilledOffset);
}
uint32_t* StageLinkEnd::drained() const {
  return reinterpret_cast<uint32_t*>(base_ + kDrainedOffset);
}
std::byte* StageLinkEnd::slot_at(uint32_t index) const {
  return slots_ + index * slot_bytes(options_.payload_bytes);
}
LinkExchange& StageLinkEnd::exchange() const {
  return *reinterpret_cast<LinkExchange*>(base_ + kExchangeOffset);
}
IpcHandle* StageLinkEnd::event_handles(Side side) const {
  auto* handles = reinterpret_cast<IpcHandle*>(base_ + kEventsOffset);
  return side == Side::sender ? handles : handles + options_.slots;
}
void StageLinkEnd::use_region_slots() {
  slots_ = base_ + slots_offset(options_.slots);
  transport_ = LinkTransport::pinned;
}

LinkPieces StageLinkEnd::pieces_of(size_t bytes) const {
  return own_events_.empty() ? link_pieces(bytes) : LinkPieces{1, bytes};
}

void StageLinkEnd::await(Stream& stream, uint32_t* word, uint32_t value) {
  if (own_events_.empty()) {
    stream.wait_value(word, value);
    return;
  }
  futex_wait_reached(word, value, 0);
  // A sender's first use of a slot waits for nobody: its event was never recorded.
  if (aborted() || (side_ == Side::sender && first_lap_)) return;
  other_events_[slot_index_]->wait(stream);
}

void StageLinkEnd::ring(Stream& stream, uint32_t slot_index, uint32_t* word, uint32_t value) {
  if (own_events_.empty()) {
    stream.write_value(word, value);
    return;
  }
  own_events_[slot_index]->record(stream);
  futex_store_and_wake(word, value);
}

void StageLinkEnd::copy_and_ring(Stream& stream, void* destination, const void* source,
                                 size_t bytes, uint32_t slot_index, uint32_t* word,
                                 uint32_t value) {
  if (own_events_.empty()) {
    stream.copy_then_write(destination, source, bytes, word, value);
    return;
  }
  stream.copy(destination, source, bytes);
  ring(stream, slot_index, word, value);
}

void StageLinkEnd::advance() {
  slot_index_ = (slot_index_ + 1) % options_.slots;
  if (slot_index_ == 0) first_lap_ = false;
  acquired_ = false;
  shared_->next.store(next_transfer() + 1, std::memory_order_relaxed);
}

void StageLinkEnd::release_waiters() {
  // The flag first: whoever a rewritten word wakes must see it.
  shared_->aborted.store(true, std::memory_order_release);
  release_words(side_);
}

// What ends of `side` wait for lies far ahead.
void StageLinkEnd::release_words(Side side) {
  const uint32_t next = next_transfer();
  if (side == Side::sender) {
    futex_store_and_wake(drained(), next + kReleaseDistance);
  } else {
    futex_store_and_wake(filled(), next * kLinkPieces + kReleaseDistance);
  }
}

void StageLinkEnd::rewind(const LinkEpoch& epoch) {
  options_.start = epoch;
  slot_index_ = 0;
  first_lap_ = true;
  acquired_ = false;
  shared_->next.store(epoch.first_transfer, std::memory_order_relaxed);
  if (side_ == Side::sender) {
    futex_store_and_wake(filled(), epoch.first_transfer * kLinkPieces);
  } else {
    futex_store_and_wake(drained(), epoch.first_transfer);
  }
}

void StageLinkEnd::reset(const LinkEpoch& epoch) {
  rewind(epoch);
  shared_->aborted.store(false, std::memory_order_release);
}

StageLinkSender::StageLinkSender(Adopt, SharedRegion& region, const StageLinkOptions& options,
                                 Device* device)
    : StageLinkEnd(Side::sender, region, options, device) {}

StageLinkSender::StageLinkSender(SharedRegion& region, const StageLinkOptions& options,
                                 Device* device)
    : StageLinkSender((format_stage_link(region, options), Adopt{}), region, options, device) {}

Result<StageLinkSender> StageLinkSender::open(SharedRegion& region, const StageLinkOptions& options,
                                              Device* device) {
  if (auto error = check_region(region, options)) return *std::move(error);
  return StageLinkSender(Adopt{}, region, options, device);
}

void* StageLinkSender::acquire(Stream& stream) {
  if (aborted()) return nullptr;
  if (!acquired_) await(stream, drained(), next_transfer() + 1 - options_.slots);
  acquired_ = true;
  return aborted() ? nullptr : slot() + kPayloadOffset;
}

void StageLinkSender::acquire_ahead(Stream& stream) {
  if (!inline_stream_ && own_events_.empty()) acquire(stream);
}

void StageLinkSender::write_header(Stream& stream, size_t bytes, uint32_t columns,
                                   std::span<const uint32_t> live) {
  CONVOY_CHECK_OP(live.size(), <=, static_cast<size_t>(kMaxLanes));
  const uint32_t transfer = next_transfer();
  LinkHeader header{};
  header.sequence = transfer;
  header.epoch = options_.start.epoch;
  header.columns = columns;
  header.lanes = static_cast<uint32_t>(live.size());
  header.bytes = bytes;
  std::memcpy(base_ + link_header_offset(transfer), &header, sizeof(header));
  if (!live.empty()) stream.copy(slot(), live.data(), live.size_bytes());
}

Transfer StageLinkSender::commit(Stream& stream, size_t bytes, uint32_t columns,
                                 std::span<const uint32_t> live) {
  CONVOY_CHECK_OP(bytes, <=, options_.payload_bytes);
  if (aborted()) return Transfer::aborted;
  write_header(stream, bytes, columns, live);
  const uint32_t transfer = next_transfer();
  const uint32_t slot_index = slot_index_;
  advance();
  ring(stream, slot_index, filled(), filled_value(transfer, 0, 1));
  return Transfer::done;
}

Transfer StageLinkSender::send(Stream& stream, const void* payload, size_t bytes, uint32_t columns,
                               std::span<const uint32_t> live) {
  CONVOY_CHECK_OP(bytes, <=, options_.payload_bytes);
  auto* destination = static_cast<std::byte*>(acquire(stream));
  if (destination == nullptr) return Transfer::aborted;
  write_header(stream, bytes, columns, live);
  const uint32_t transfer = next_transfer();
  const uint32_t slot_index = slot_index_;
  advance();
  const LinkPieces pieces = pieces_of(bytes);
  for (uint32_t piece = 0; piece < pieces.count; ++piece) {
    const size_t begin = piece * pieces.piece_bytes;
    const size_t end = piece + 1 == pieces.count ? bytes : begin + pieces.piece_bytes;
    copy_and_ring(stream, destination + begin, static_cast<const std::byte*>(payload) + begin,
                  end - begin, slot_index, filled(), filled_value(transfer, piece, pieces.count));
  }
  return Transfer::done;
}

StageLinkReceiver::StageLinkReceiver(SharedRegion& region, const StageLinkOptions& options,
                                     Device* device)
    : StageLinkEnd(Side::receiver, region, options, device) {}

Result<StageLinkReceiver> StageLinkReceiver::open(SharedRegion& region,
                                                  const StageLinkOptions& options, Device* device) {
  if (auto error = check_region(region, options)) return *std::move(error);
  return StageLinkReceiver(region, options, device);
}

uint32_t StageLinkReceiver::drained_word() const {
  return std::atomic_ref<uint32_t>(*drained()).load(std::memory_order_acquire);
}

Status StageLinkReceiver::check_received(const LinkExpectation& expected) const {
  LinkHeader header{};
  std::memcpy(&header, base_ + link_header_offset(expected.transfer), sizeof(header));
  const auto differs = [&](const char* field, uint64_t value, uint64_t wanted) {
    return Error{"stage link \"" + label_ + "\", transfer " + std::to_string(expected.transfer) +
                 ": " + field + " is " + std::to_string(value) + ", expected " +
                 std::to_string(wanted)};
  };
  if (header.sequence != expected.transfer) {
    return differs("sequence", header.sequence, expected.transfer);
  }
  if (header.epoch != options_.start.epoch) {
    return differs("epoch", header.epoch, options_.start.epoch);
  }
  if (header.bytes != expected.bytes) return differs("bytes", header.bytes, expected.bytes);
  if (expected.columns != kAnyColumns && header.columns != expected.columns) {
    return differs("columns", header.columns, expected.columns);
  }
  if (expected.lanes != 0 && header.lanes != expected.lanes) {
    return differs("lanes", header.lanes, expected.lanes);
  }
  return {};
}

Result<Transfer> StageLinkReceiver::receive(Stream& stream, void* destination, size_t bytes,
                                            uint32_t columns, std::span<uint32_t> live) {
  CONVOY_CHECK_OP(bytes, <=, options_.payload_bytes);
  CONVOY_CHECK_OP(live.size(), <=, static_cast<size_t>(kMaxLanes));
  const uint32_t transfer = next_transfer();
  const LinkPieces pieces = pieces_of(bytes);
  for (uint32_t piece = 0; piece < pieces.count; ++piece) {
    if (aborted()) return Transfer::aborted;
    await(stream, filled(), filled_value(transfer, piece, pieces.count));
    if (aborted()) return Transfer::aborted;
    if (piece == 0) {
      if (inline_stream_) {
        const auto lanes = static_cast<uint32_t>(live.size());
        if (Status status = check_received({transfer, bytes, columns, lanes}); !status) {
          return Error{status.error()};
        }
      }
      if (!live.empty()) stream.copy(live.data(), slot(), live.size_bytes());
    }
    const size_t begin = piece * pieces.piece_bytes;
    auto* const to = static_cast<std::byte*>(destination) + begin;
    const std::byte* const from = slot() + kPayloadOffset + begin;
    if (piece + 1 < pieces.count) {
      stream.copy(to, from, pieces.piece_bytes);
      continue;
    }
    const uint32_t slot_index = slot_index_;
    advance();
    copy_and_ring(stream, to, from, bytes - begin, slot_index, drained(), transfer + 1);
  }
  return Transfer::done;
}

}  // namespace convoy
