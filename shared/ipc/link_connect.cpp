// How the two ends of a link settle their transport and test it.
//
//   receiver                                    sender
//   offers its memory, its events       step 1
//                                       step 1  maps it, chooses the transport, its events
//                                               sends the test transfers
//   compares them, fills its slots      step 2
//                                       step 2  reads the slots back; both verdicts are known
//   rewinds, frees what failed          step 3
//                                               goes on, or tests again with pinned slots (2, 2, 3)
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/exit_code.h"
#include "base/futex.h"
#include "shared/ipc/link_exchange.h"
#include "shared/ipc/stage_link.h"

namespace convoy {
namespace {

constexpr size_t kLargestTestBytes = size_t{2} << 20;
constexpr auto kIdlePoll = std::chrono::microseconds(50);
constexpr auto kGiveUpTime = std::chrono::seconds(30);
constexpr int kStepPollMs = 50;  // how often a waiting end looks whether it was aborted

// Three laps: every slot is used again, so that both words are tested.
uint32_t test_transfers(const StageLinkOptions& options) {
  return 3 * options.slots;
}
// Small and large payloads in turn: one piece, several pieces.
size_t test_bytes(const StageLinkOptions& options, uint32_t index) {
  const size_t largest = std::min(options.payload_bytes, kLargestTestBytes) / 4 * 4;
  return index % 2 == 0 ? std::min(largest, size_t{4096}) : largest;
}

uint32_t test_word(uint32_t seed, size_t index) {
  return seed * 2654435761U + static_cast<uint32_t>(index) * 40503U + 1;
}
void fill_words(void* memory, size_t bytes, uint32_t seed) {
  auto* words = static_cast<uint32_t*>(memory);
  for (size_t i = 0; i < bytes / 4; ++i) words[i] = test_word(seed, i);
}
// The first byte that differs, or `bytes`.
size_t first_difference(const void* memory, size_t bytes, uint32_t seed) {
  const auto* words = static_cast<const uint32_t*>(memory);
  for (size_t i = 0; i < bytes / 4; ++i) {
    if (words[i] != test_word(seed, i)) return i * 4;
  }
  return bytes;
}
// Seeds of what the receiver leaves in its slots: far from those of the transfers.
uint32_t slot_seed(uint32_t slot) {
  return 0x10000 + slot;
}

void write_text(LinkText& text, const std::string& value) {
  text.fill(0);
  std::copy_n(value.begin(), std::min(value.size(), text.size() - 1), text.begin());
}
std::string read_text(const LinkText& text) {
  const LinkText copy = text;
  return std::string(copy.begin(), std::find(copy.begin(), copy.end(), '\0'));
}

// Counter values of the steps that repeat with every attempt.
constexpr uint32_t kOffered = 1;
constexpr uint32_t kChosen = 1;
uint32_t compared(uint32_t attempt) {
  return 2 + 2 * attempt;
}
uint32_t read_back(uint32_t attempt) {
  return 2 + attempt;
}
uint32_t rewound(uint32_t attempt) {
  return 3 + 2 * attempt;
}

}  // namespace

Error StageLinkEnd::connect_error(const std::string& what) const {
  return Error{"stage link \"" + label_ + "\": " + what};
}

Status StageLinkEnd::await_step(uint32_t* step, uint32_t value, Clock::time_point deadline) const {
  while (!futex_wait_reached_for(step, value, 0, kStepPollMs)) {
    if (aborted()) return connect_error("aborted while it was connected");
    if (Clock::now() >= deadline) return connect_error("the other end does not answer");
  }
  return {};
}

bool StageLinkEnd::wait_idle(Stream& stream, Clock::time_point deadline) const {
  while (!stream.idle()) {
    if (aborted() || Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kIdlePoll);
  }
  return true;
}

// A test that does not end: lets everything that waits pass, here and on the other end, whose host
// may wait too. Both words are rewound before the link is used again.
void StageLinkEnd::give_up_test(Stream& stream) {
  const auto deadline = Clock::now() + kGiveUpTime;
  do {
    release_words(Side::sender);
    release_words(Side::receiver);
    std::this_thread::sleep_for(kIdlePoll);
    CONVOY_CHECK(Clock::now() < deadline, "stage link \"" + label_ + "\": the stream does not end");
  } while (!stream.idle());
}

// Nothing else can ring instead: the other end and the run were told what the doorbell is.
Error StageLinkEnd::events_error(const std::string& why) const {
  return connect_error(why + "; --doorbell memops does without events of several processes");
}

Status StageLinkEnd::export_events() {
  if (options_.doorbell != LinkDoorbell::events) return {};
  IpcHandle* handles = event_handles(side_);
  for (uint32_t i = 0; i < options_.slots; ++i) {
    auto event = device_->make_ipc_event();
    if (!event) return events_error(event.error());
    own_events_.push_back(std::move(event).value());
    const auto handle = device_->export_event(*own_events_.back());
    if (!handle) return events_error(handle.error());
    handles[i] = handle.value();
  }
  return {};
}

Status StageLinkEnd::import_events() {
  if (options_.doorbell != LinkDoorbell::events) return {};
  const IpcHandle* handles = event_handles(side_ == Side::sender ? Side::receiver : Side::sender);
  for (uint32_t i = 0; i < options_.slots; ++i) {
    auto event = device_->import_ipc_event(handles[i]);
    if (!event) return events_error(event.error());
    other_events_.push_back(std::move(event).value());
  }
  return {};
}

// ---- sender ----

// The transport, and why it is not the one that was wished for.
void StageLinkSender::choose_transport() {
  LinkExchange& shared = exchange();
  const bool same = read_text(shared.receiver_device) == device_->info().uuid;
  const bool wants_memory =
      options_.wish == LinkWish::peer || (options_.wish == LinkWish::local && same);
  std::string fallback;
  if (wants_memory && shared.has_memory == 0) {
    fallback = read_text(shared.no_memory);
  } else if (wants_memory) {
    auto imported = device_->import_memory(shared.memory);
    if (imported) {
      imported_ = std::move(imported).value();
      slots_ = static_cast<std::byte*>(imported_->data());
      transport_ = same ? LinkTransport::local : LinkTransport::peer;
    } else {
      fallback = imported.error();
    }
  }
  write_text(shared.fallback, fallback);
  shared.transport = static_cast<uint32_t>(transport_);
}

Status StageLinkSender::run_test(Stream& stream, Clock::time_point deadline) {
  const size_t largest = test_bytes(options_, 1);
  const Buffer host = device_->allocate_host(std::max<size_t>(largest, 4), label_ + " (test)");
  const Buffer source = device_->allocate(std::max<size_t>(largest, 4), label_ + " (test)");
  for (uint32_t i = 0; i < test_transfers(options_); ++i) {
    const size_t bytes = test_bytes(options_, i);
    if (!wait_idle(stream, deadline)) break;  // `host` is written anew
    fill_words(host.data(), bytes, i);
    stream.copy(source.data(), host.data(), bytes);
    if (send(stream, source.data(), bytes, i, {}) == Transfer::aborted) break;
  }
  if (!wait_idle(stream, deadline)) {
    give_up_test(stream);
    return connect_error("the receiver did not drain its slots");
  }
  return {};
}

// Whether this end sees what the receiver wrote into its device memory.
bool StageLinkSender::reads_back(Stream& stream, Clock::time_point deadline) {
  const size_t bytes = test_bytes(options_, 1);
  if (bytes == 0) return true;
  const Buffer host = device_->allocate_host(bytes, label_ + " (test)");
  for (uint32_t i = 0; i < options_.slots; ++i) {
    std::memset(host.data(), 0, bytes);
    stream.copy(host.data(), slot_at(i), bytes);
    if (!wait_idle(stream, deadline)) return false;
    if (first_difference(host.data(), bytes, slot_seed(i)) != bytes) return false;
  }
  return true;
}

Result<LinkConnection> StageLinkSender::connect(Stream& stream, const LinkConnectOptions& options) {
  if (!connects()) return LinkConnection{};
  const auto deadline = Clock::now() + std::chrono::milliseconds(options.timeout_ms);
  const auto test_time = std::chrono::milliseconds(options.test_timeout_ms);
  LinkExchange& shared = exchange();
  if (Status status = await_step(&shared.receiver_step, kOffered, deadline); !status)
    return Error{status.error()};
  choose_transport();
  if (Status status = export_events(); !status) return Error{status.error()};
  if (Status status = import_events(); !status) return Error{status.error()};
  futex_store_and_wake(&shared.sender_step, kChosen);

  const LinkEpoch start = options_.start;
  for (uint32_t attempt = 0;; ++attempt) {
    const Status sent = run_test(stream, Clock::now() + test_time);
    if (aborted()) return connect_error("aborted while it was connected");
    if (Status status = await_step(&shared.receiver_step, compared(attempt), deadline); !status)
      return Error{status.error()};
    std::string wrong = sent ? "" : sent.error();
    if (shared.received_right == 0) wrong = read_text(shared.what_was_wrong);
    if (wrong.empty() && transport_ != LinkTransport::pinned &&
        !reads_back(stream, Clock::now() + test_time)) {
      wrong = "what the receiver wrote into its device memory reads differently here";
    }
    const bool memory_failed = !wrong.empty() && transport_ != LinkTransport::pinned;
    if (memory_failed) {
      write_text(shared.fallback, std::string(link_transport_name(transport_)) + ": " + wrong);
      use_region_slots();
      imported_.reset();
    }
    shared.read_right = wrong.empty() ? 1 : 0;
    rewind(start);
    futex_store_and_wake(&shared.sender_step, read_back(attempt));
    if (Status status = await_step(&shared.receiver_step, rewound(attempt), deadline); !status)
      return Error{status.error()};
    if (wrong.empty()) return LinkConnection{transport_, read_text(shared.fallback)};
    if (!memory_failed) return connect_error("its test failed: " + wrong);
  }
}

// ---- receiver ----

void StageLinkReceiver::offer_memory() {
  LinkExchange& shared = exchange();
  write_text(shared.receiver_device, device_->info().uuid);
  if (options_.wish == LinkWish::pinned) return;
  if (!device_->supports_memory_export()) {
    write_text(shared.no_memory, "the receiver's device shares no memory");
    return;
  }
  try {
    device_slots_ = device_->allocate_exportable(device_slots_bytes(options_), "link " + label_);
  } catch (const StartError& error) {
    write_text(shared.no_memory, error.what());
    return;
  }
  const auto handle = device_->export_memory(device_slots_);
  if (!handle) {
    write_text(shared.no_memory, handle.error());
    device_slots_ = {};
    return;
  }
  shared.memory = handle.value();
  shared.has_memory = 1;
}

// Receives and compares what the sender's run_test() sends, then leaves other words in the slots.
Status StageLinkReceiver::run_test(Stream& stream, Clock::time_point deadline) {
  const size_t largest = std::max<size_t>(test_bytes(options_, 1), 4);
  const Buffer host = device_->allocate_host(largest, label_ + " (test)");
  const Buffer target = device_->allocate(largest, label_ + " (test)");
  Status wrong;
  for (uint32_t i = 0; i < test_transfers(options_); ++i) {
    const size_t bytes = test_bytes(options_, i);
    const LinkExpectation expected{next_transfer(), bytes, i, 0};
    const auto received = receive(stream, target.data(), bytes, i);
    if (!received) return Error{received.error()};
    if (received.value() == Transfer::aborted) {
      give_up_test(stream);
      return connect_error("aborted while it was tested");
    }
    stream.copy(host.data(), target.data(), bytes);
    if (!wait_idle(stream, deadline)) {
      give_up_test(stream);
      return connect_error("test transfer " + std::to_string(i) + " did not arrive");
    }
    if (!wrong) continue;  // takes the rest, so that the sender is not held up
    wrong = check_received(expected);
    const size_t differs = first_difference(host.data(), bytes, i);
    if (wrong && differs != bytes) {
      wrong = connect_error("byte " + std::to_string(differs) + " of " + std::to_string(bytes) +
                            " of test transfer " + std::to_string(i) + " arrived wrong");
    }
  }
  if (device_slots_ && largest <= options_.payload_bytes) {
    for (uint32_t i = 0; i < options_.slots; ++i) {
      fill_words(host.data(), largest, slot_seed(i));
      stream.copy(slot_at(i), host.data(), largest);
      if (!wait_idle(stream, deadline)) return connect_error("its own slots cannot be written");
    }
  }
  return wrong;
}

Result<LinkConnection> StageLinkReceiver::connect(Stream& stream,
                                                  const LinkConnectOptions& options) {
  if (!connects()) return LinkConnection{};
  const auto deadline = Clock::now() + std::chrono::milliseconds(options.timeout_ms);
  LinkExchange& shared = exchange();
  offer_memory();
  if (Status status = export_events(); !status) return Error{status.error()};
  futex_store_and_wake(&shared.receiver_step, kOffered);
  if (Status status = await_step(&shared.sender_step, kChosen, deadline); !status)
    return Error{status.error()};
  if (Status status = import_events(); !status) return Error{status.error()};
  transport_ = static_cast<LinkTransport>(shared.transport);
  if (transport_ != LinkTransport::pinned) {
    if (!device_slots_ || shared.transport > static_cast<uint32_t>(LinkTransport::local))
      return connect_error("the sender chose a transport that was not offered");
    slots_ = device_slots_.as<std::byte>();
  } else {
    device_slots_ = {};
  }

  const LinkEpoch start = options_.start;
  for (uint32_t attempt = 0;; ++attempt) {
    const Status received =
        run_test(stream, Clock::now() + std::chrono::milliseconds(options.test_timeout_ms));
    if (aborted()) return connect_error("aborted while it was connected");
    write_text(shared.what_was_wrong, received ? "" : received.error());
    shared.received_right = received ? 1 : 0;
    futex_store_and_wake(&shared.receiver_step, compared(attempt));
    if (Status status = await_step(&shared.sender_step, read_back(attempt), deadline); !status)
      return Error{status.error()};
    const bool right = shared.read_right == 1;
    const bool memory_failed = !right && transport_ != LinkTransport::pinned;
    if (memory_failed) {
      use_region_slots();
      device_slots_ = {};
    }
    rewind(start);
    futex_store_and_wake(&shared.receiver_step, rewound(attempt));
    if (right) return LinkConnection{transport_, read_text(shared.fallback)};
    if (!memory_failed)
      return connect_error("its test failed: " + read_text(shared.what_was_wrong));
  }
}

}  // namespace convoy
