// What one rendering may use, counted while it runs. A template comes from whoever made the
// checkpoint and its variables from whoever sent the request; neither may keep the process busy or
// fill its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/chat_template/render_options.h"

namespace convoy::jinja {

/// Ends a rendering; ChatTemplate::render turns it into an Error with the place in the template.
/// Never leaves the box.
struct RenderFailure {
  std::string message;
};

/// Belongs to one rendering and outlives all its values.
class Budget {
 public:
  explicit Budget(const RenderLimits& limits) : limits_(limits) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  const RenderLimits& limits() const { return limits_; }

  /// Counts work; throws RenderFailure beyond max_steps.
  void step(uint64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.max_steps) [[unlikely]]
      fail_steps();
  }
  /// Work on `bytes` bytes that were read or written in one go.
  void step_bytes(size_t bytes) { step(1 + bytes / 64); }

  /// Counts memory before it is taken; throws RenderFailure beyond max_live_bytes.
  void take(size_t bytes) {
    step_bytes(bytes);
    if (bytes > limits_.max_live_bytes - live_bytes_) [[unlikely]]
      fail_memory();
    live_bytes_ += bytes;
  }
  void give_back(size_t bytes) { live_bytes_ -= bytes; }
  uint64_t live_bytes() const { return live_bytes_; }

  void enter() {
    if (++depth_ > limits_.max_depth) [[unlikely]]
      fail_depth();
  }
  void leave() { --depth_; }

 private:
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_memory() const;
  [[noreturn]] void fail_depth() const;

  RenderLimits limits_;
  uint64_t steps_ = 0;
  uint64_t live_bytes_ = 0;
  int depth_ = 0;
};

/// One level of recursion.
class DepthGuard {
 public:
  explicit DepthGuard(Budget& budget) : budget_(budget) {
    // A failing enter() counts too: the destructor does not run, and the rendering is over.
    budget_.enter();
  }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  ~DepthGuard() { budget_.leave(); }

 private:
  Budget& budget_;
};

/// Memory counted in a budget until destruction. Moved-from: holds nothing.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(Budget& budget, size_t bytes) : budget_(&budget), bytes_(bytes) {
    budget.take(bytes);
  }
  MemoryCharge(MemoryCharge&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryCharge() {
    if (budget_ != nullptr) budget_->give_back(bytes_);
  }

  /// Only on a charge that has a budget.
  void add(size_t bytes) {
    budget_->take(bytes);
    bytes_ += bytes;
  }
  size_t bytes() const { return bytes_; }

 private:
  Budget* budget_ = nullptr;
  size_t bytes_ = 0;
};

/// A text under construction, counted byte by byte.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : charge_(budget, 0) {}

  void append(std::string_view text) {
    charge_.add(text.size());
    text_.append(text);
  }
  void append(char c) { append(std::string_view(&c, 1)); }
  void append(size_t count, char c) {
    charge_.add(count);
    text_.append(count, c);
  }
  size_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }
  std::string take_text() && { return std::move(text_); }

 private:
  MemoryCharge charge_;
  std::string text_;
};

}  // namespace convoy::jinja
