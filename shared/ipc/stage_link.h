// StageLink: activations from one process to the next, through slots in shared memory. One
// direction, one sender, one receiver.
//
//   sender, transfer t:                       receiver:
//     wait drained >= t + 1 - slots
//     header (host), live words, piece 0 in
//     filled = 8 t + 1                          wait filled >= 8 t + 1
//     copy piece 1 in                           copy live words, piece 0 out
//     ...                                       ...
//     filled = 8 t + 8 (the last piece)         wait filled >= 8 t + 8, copy the last piece out
//                                               drained = t + 1
//
// `filled` counts pieces and `drained` counts transfers: 32-bit counters that may wrap, monotone
// within an epoch, each on its own cache lines; waits are "reached", not "equal". A payload of 256
// KiB or more goes in up to 8 pieces of at least 256 KiB, so that copying in and copying out
// overlap; a smaller one in one piece, which advances `filled` by 8.
//
// All copies, waits and writes go through a Stream, in stream order, so the same code serves a
// stream that runs inline (CPU) and one that enqueues (CUDA); what this end keeps on the host
// counts calls, never what a stream has done. A header is written by the sender's host when it
// enqueues, into one of kLinkHeaders places of the region (a copy from host to host memory would
// make a CUDA stream's host wait); it is visible with the first piece. At most kMaxLinkAhead
// transfers may be enqueued ahead on each side, so that a header is never overwritten before it was
// looked at. receive() compares the header itself only when the stream runs inline (no device
// given, or a CPU device). After a stream that enqueues has passed the transfer, check_received()
// does.
//
// Where the slots lie is the transport. `pinned`: in the region; the sender's device copies to host
// memory, the receiver's from it. `peer` and `local`: in the receiver's device memory, which the
// sender maps (of another device, or of the same one). How an end learns of the other's progress is
// the doorbell. `words`: streams wait for the counters and write them. `events`: the sender records
// an event of the slot and its host then stores the counter; the receiver's host waits for the
// counter, then makes its stream wait for the event; likewise back. With events the hosts run in
// step, a transfer is one piece, and a stream that waits for a dead peer cannot be released.
// connect() settles the transport and exchanges events; without it a link is pinned, with words.
//
// Abort: release_waiters() rewrites this end's own incoming word to far ahead, so that its blocked
// waits return without help from the peer. A peer that is still alive may write its word over it:
// call it again until the stream is idle.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/device/device.h"
#include "kernels/ops/step.h"
#include "shared/ipc/shared_region.h"

namespace convoy {

inline constexpr uint64_t kStageLinkMagic = 0x6b6e696c65677473;  // "stgelink"
inline constexpr uint32_t kStageLinkVersion = 3;
inline constexpr uint32_t kLinkPieces = 8;
inline constexpr size_t kLinkPieceBytes = size_t{256} << 10;
inline constexpr uint32_t kLinkHeaders = 256;
inline constexpr uint32_t kMaxLinkAhead = 64;
/// For receive(): the number of columns is not compared.
inline constexpr uint32_t kAnyColumns = ~uint32_t{0};

/// Where the counters of a link begin; both ends agree on it. Tests start near the wrap.
struct LinkEpoch {
  uint32_t epoch = 0;
  uint32_t first_transfer = 0;
};

enum class LinkTransport : uint32_t { pinned, peer, local };
/// "pinned", "peer" or "local".
const char* link_transport_name(LinkTransport transport);

/// Which transport to use where there is a choice. `peer`: device memory wherever it works.
/// `local`: device memory between stages on one device only.
enum class LinkWish : uint32_t { pinned, peer, local };

enum class LinkDoorbell : uint32_t { words, events };

struct StageLinkOptions {
  uint32_t slots = 2;
  size_t payload_bytes = 0;  ///< the largest payload
  LinkEpoch start;
  LinkWish wish = LinkWish::pinned;
  LinkDoorbell doorbell = LinkDoorbell::words;
};

/// What connect() agreed on.
struct LinkConnection {
  LinkTransport transport = LinkTransport::pinned;
  /// Why it is not what was wished; empty: it is.
  std::string fallback;
};

struct LinkConnectOptions {
  int timeout_ms = 120'000;      ///< for the other end to come
  int test_timeout_ms = 20'000;  ///< for what the test sends to arrive
};

/// The first bytes of the region.
struct StageLinkRegionHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slots;
  uint64_t payload_bytes;
  uint32_t epoch;
  uint32_t first_transfer;
  uint32_t wish;      // LinkWish
  uint32_t doorbell;  // LinkDoorbell
  uint32_t reserved[6];
};
static_assert(sizeof(StageLinkRegionHeader) == 64);

/// What belongs to a transfer beside its payload. Its live words lie before the payload in the
/// slot, and come from where the caller has them.
struct LinkHeader {
  uint32_t sequence;  ///< number of the transfer
  uint32_t epoch;
  uint32_t columns;
  uint32_t lanes;  ///< live words that were sent
  uint64_t bytes;
  uint32_t reserved[10];
};
static_assert(sizeof(LinkHeader) == 64);
/// Where the header of a transfer lies, from the start of the region.
size_t link_header_offset(uint32_t transfer);

/// How a transfer ended. `aborted`: release_waiters() was called; no payload was touched after that
/// and nothing advanced.
enum class [[nodiscard]] Transfer{done, aborted};

/// How a payload is cut: pieces [0, count), all of piece_bytes but for the last, which takes the
/// rest.
struct LinkPieces {
  uint32_t count;
  size_t piece_bytes;
};
LinkPieces link_pieces(size_t payload_bytes);

/// What a receiver knows of a transfer.
struct LinkExpectation {
  uint32_t transfer = 0;
  size_t bytes = 0;
  uint32_t columns = kAnyColumns;
  uint32_t lanes = 0;  ///< live words, 0: not compared
};

/// Bytes of device memory that the receiver of a peer or local link takes.
size_t device_slots_bytes(const StageLinkOptions& options);

/// Bytes of a region for these options.
size_t stage_link_region_bytes(const StageLinkOptions& options);

/// Prepares a fresh region, before either end opens it. For whoever creates the region but is not
/// its sender.
void format_stage_link(SharedRegion& region, const StageLinkOptions& options);

/// What the two ends tell each other in connect() (link_connect.cpp).
struct LinkExchange;

/// What both ends have in common; not used by itself.
class StageLinkEnd {
 public:
  /// Makes this end's blocked and later calls return Transfer::aborted. From any thread, any number
  /// of times.
  void release_waiters();
  bool aborted() const { return shared_->aborted.load(std::memory_order_acquire); }
  /// Begins a new epoch on this end: the word it writes and its host state start anew. Both ends'
  /// streams are idle, and both ends reset before either transfers again: each resets the word that
  /// the other waits on.
  void reset(const LinkEpoch& epoch);
  /// The number of the transfer that the next call makes: first_transfer, then one more each.
  uint32_t next_transfer() const { return shared_->next.load(std::memory_order_relaxed); }
  const StageLinkOptions& options() const { return options_; }
  LinkTransport transport() const { return transport_; }

 protected:
  enum class Side { sender, receiver };
  using Clock = std::chrono::steady_clock;
  StageLinkEnd(Side side, SharedRegion& region, const StageLinkOptions& options, Device* device);

  uint32_t* filled() const;
  uint32_t* drained() const;
  std::byte* slot() const { return slot_at(slot_index_); }  // live words, then the payload
  std::byte* slot_at(uint32_t index) const;
  LinkPieces pieces_of(size_t bytes) const;
  void advance();
  // Of the slot in turn: waits for the other end's word, or tells the other end.
  void await(Stream& stream, uint32_t* word, uint32_t value);
  void ring(Stream& stream, uint32_t slot_index, uint32_t* word, uint32_t value);
  void copy_and_ring(Stream& stream, void* destination, const void* source, size_t bytes,
                     uint32_t slot_index, uint32_t* word, uint32_t value);

  // Used by connect() only.
  bool connects() const { return !inline_stream_; }
  LinkExchange& exchange() const;
  IpcHandle* event_handles(Side side) const;
  Status export_events();
  Status import_events();
  Error events_error(const std::string& why) const;
  void rewind(const LinkEpoch& epoch);
  void use_region_slots();
  void release_words(Side side);
  void give_up_test(Stream& stream);
  bool wait_idle(Stream& stream, Clock::time_point deadline) const;
  Status await_step(uint32_t* step, uint32_t value, Clock::time_point deadline) const;
  Error connect_error(const std::string& what) const;

  // Read by release_waiters() on another thread; apart, because atomics do not move.
  struct Shared {
    std::atomic<uint32_t> next{0};
    std::atomic<bool> aborted{false};
  };

  Side side_;
  std::byte* base_;
  std::string label_;
  StageLinkOptions options_;
  Device* device_;
  bool inline_stream_;
  LinkTransport transport_ = LinkTransport::pinned;
  std::byte* slots_;         // in the region, or device memory
  uint32_t slot_index_ = 0;  // not transfer % slots, which jumps where the counter wraps
  bool first_lap_ = true;    // no slot was used twice since the epoch began
  bool acquired_ = false;    // a sender has waited for the next transfer's slot
  std::unique_ptr<Shared> shared_;
  std::unique_ptr<HostRegistration> registration_;
  std::vector<std::unique_ptr<IpcEvent>> own_events_;    // by slot; none: doorbell words
  std::vector<std::unique_ptr<IpcEvent>> other_events_;  // by slot
};

/// Move-only; the region must outlive it. One thread calls it, but for release_waiters(). With a
/// device, the region is registered with it for as long as this end lives.
class StageLinkSender : public StageLinkEnd {
 public:
  /// Formats the region; the receiver opens it afterwards.
  StageLinkSender(SharedRegion& region, const StageLinkOptions& options, Device* device = nullptr);
  /// For a region that format_stage_link() prepared. Errors name the field and both values.
  static Result<StageLinkSender> open(SharedRegion& region, const StageLinkOptions& options,
                                      Device* device = nullptr);

  /// Settles the transport with the receiver, which calls its connect() meanwhile, and tests the
  /// link with transfers that the receiver compares: device memory that fails is given up for
  /// pinned slots. Once, before the first transfer, while no stream of this process waits; the link
  /// then begins at its epoch's start. On a CPU device it returns at once. An error: the other end
  /// did not come, was aborted, or not even pinned slots work.
  Result<LinkConnection> connect(Stream& stream, const LinkConnectOptions& options = {});

  /// Waits for a slot, then copies `bytes` (at most payload_bytes) of payload and the live words
  /// (at most kMaxLanes) into it. Both are read in stream order, so they may be device memory and
  /// must stay until the stream has passed.
  Transfer send(Stream& stream, const void* payload, size_t bytes, uint32_t columns,
                std::span<const uint32_t> live);

  /// The same in two halves, for producing straight into the slot: acquire() waits and returns the
  /// payload's address (null: aborted), stream-ordered work fills it, commit() publishes it in one
  /// piece. A second acquire() before it does not wait again.
  void* acquire(Stream& stream);
  Transfer commit(Stream& stream, size_t bytes, uint32_t columns, std::span<const uint32_t> live);
  /// acquire() for a later send(), before the stream waits for what it will send: nobody waits for
  /// the slot on the way of a transfer then. Nothing where the host would have to wait itself.
  void acquire_ahead(Stream& stream);

 private:
  struct Adopt {};
  StageLinkSender(Adopt, SharedRegion& region, const StageLinkOptions& options, Device* device);
  void write_header(Stream& stream, size_t bytes, uint32_t columns, std::span<const uint32_t> live);
  void choose_transport();
  Status run_test(Stream& stream, Clock::time_point deadline);
  bool reads_back(Stream& stream, Clock::time_point deadline);

  std::unique_ptr<ImportedMemory> imported_;
};

/// As StageLinkSender.
class StageLinkReceiver : public StageLinkEnd {
 public:
  /// The word that tells the sender of free slots: the number after the last transfer whose payload
  /// has left its slot. With LinkDoorbell::events it runs ahead of the device.
  uint32_t drained_word() const;
  /// Checks the region against `options`. Errors name the field and both values.
  static Result<StageLinkReceiver> open(SharedRegion& region, const StageLinkOptions& options,
                                        Device* device = nullptr);

  /// As StageLinkSender::connect().
  Result<LinkConnection> connect(Stream& stream, const LinkConnectOptions& options = {});

  /// Waits for the next transfer and copies its payload of `bytes` to `destination` and its live
  /// words to `live` (empty: not wanted), in stream order; then the slot is free. When the stream
  /// runs inline, a header with another sequence, epoch, size, number of columns (unless
  /// kAnyColumns) or of live words is an error that names the link, the field and both values; the
  /// destination is untouched and the link does not advance.
  Result<Transfer> receive(Stream& stream, void* destination, size_t bytes,
                           uint32_t columns = kAnyColumns, std::span<uint32_t> live = {});

  /// Compares the header of one of the last kMaxLinkAhead transfers, once the stream has passed it.
  Status check_received(const LinkExpectation& expected) const;

 private:
  StageLinkReceiver(SharedRegion& region, const StageLinkOptions& options, Device* device);
  void offer_memory();
  Status run_test(Stream& stream, Clock::time_point deadline);

  Buffer device_slots_;
};

}  // namespace convoy
