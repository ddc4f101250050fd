#include "shared/stage/layer_state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/file_io.h"
#include "shared/plan/stage_memory.h"

namespace convoy {
namespace {

// The last of an area's 64 slots, from `filled` on; gives what follows the area.
std::byte* clear_slots(std::byte* area, size_t slot_bytes, uint32_t filled) {
  std::memset(area + filled * slot_bytes, 0, (uint32_t{kPageTokens} - filled) * slot_bytes);
  return area + size_t{kPageTokens} * slot_bytes;
}

// Slots of the last page that no token has filled: what they hold belongs to nobody.
void clear_empty_slots(std::byte* page, const ModelConfig& config, KvDtype dtype, uint32_t filled) {
  const size_t value_bytes = static_cast<size_t>(config.head_dim) * kv_value_bytes(dtype);
  const size_t scale_bytes = kv_token_bytes(dtype, config.head_dim) - value_bytes;
  for (int head = 0; head < config.num_kv_heads; ++head)
    page = clear_slots(clear_slots(page, value_bytes, filled), scale_bytes, filled);
}

uint32_t filled_slots(uint32_t tokens, size_t block) {
  const auto begin = static_cast<uint32_t>(block) * uint32_t{kPageTokens};
  return std::min(tokens - begin, uint32_t{kPageTokens});
}

}  // namespace

// Device memory into the file, piece by piece.
class LayerStateMover::Writing {
 public:
  Writing(LayerStateMover& mover, int fd, uint64_t offset)
      : mover_(mover), fd_(fd), offset_(offset) {}

  // `finish` may change a piece before it is hashed and written; pieces are whole pages then.
  template <typename Finish>
  Status put(const std::byte* from, uint64_t bytes, const Finish& finish) {
    auto* const piece = mover_.buffer_.as<std::byte>();
    while (bytes > 0) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(bytes, mover_.buffer_.bytes()));
      mover_.stream_.copy(piece, from, count);
      mover_.stream_.synchronize();
      finish(piece);
      hash_.add(piece, count);
      if (Status status = write(piece, count); !status) return status;
      from += count;
      bytes -= count;
    }
    return {};
  }
  uint64_t hash() const { return hash_.value(); }

 private:
  Status write(const std::byte* from, size_t bytes) {
    if (const Status status = write_at(fd_, from, bytes, offset_); !status)
      return Error{"writing a state: " + status.error()};
    offset_ += bytes;
    return {};
  }

  LayerStateMover& mover_;
  int fd_;
  uint64_t offset_;
  StateHash hash_;
};

// The file into device memory.
class LayerStateMover::Reading {
 public:
  Reading(LayerStateMover& mover, int fd, uint64_t offset)
      : mover_(mover), fd_(fd), offset_(offset) {}

  Status get(std::byte* to, uint64_t bytes) {
    auto* const piece = mover_.buffer_.as<std::byte>();
    while (bytes > 0) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(bytes, mover_.buffer_.bytes()));
      if (Status status = read(piece, count); !status) return status;
      hash_.add(piece, count);
      mover_.stream_.copy(to, piece, count);
      mover_.stream_.synchronize();
      to += count;
      bytes -= count;
    }
    return {};
  }
  Status compare(const StateSection& section) const {
    if (hash_.value() == section.hash) return {};
    return Error{"the bytes of a layer were altered"};
  }

 private:
  Status read(std::byte* to, size_t bytes) {
    const auto got = read_at(fd_, to, bytes, offset_);
    if (!got) return Error{"reading a state: " + got.error()};
    if (got.value() < bytes) return Error{"a state ends in the middle of a layer"};
    offset_ += bytes;
    return {};
  }

  LayerStateMover& mover_;
  int fd_;
  uint64_t offset_;
  StateHash hash_;
};

LayerStateMover::LayerStateMover(Stream& stream, Buffer& buffer)
    : stream_(stream), buffer_(buffer) {
  CONVOY_CHECK_OP(buffer_.bytes(), >=, kBufferBytes);
}

Result<uint64_t> LayerStateMover::save(const AttentionLayer& layer, const ModelConfig& config,
                                       const SequencePlace& place, int fd,
                                       const StateSection& section) {
  CONVOY_CHECK_OP(section.bytes, ==, 2 * place.pages.size() * layer.page_bytes());
  CONVOY_CHECK_OP(layer.page_bytes(), <=, buffer_.bytes());
  Writing file(*this, fd, section.offset);
  for (size_t block = 0; block < place.pages.size(); ++block) {
    const uint32_t filled = filled_slots(place.tokens, block);
    const auto finish = [&](std::byte* page) {
      if (filled < uint32_t{kPageTokens}) clear_empty_slots(page, config, layer.kv_dtype(), filled);
    };
    for (const std::byte* page :
         {layer.k_page(place.pages[block]), layer.v_page(place.pages[block])}) {
      if (Status status = file.put(page, layer.page_bytes(), finish); !status)
        return Error{status.error()};
    }
  }
  return file.hash();
}

Result<uint64_t> LayerStateMover::save(const GdnLayer& layer, const ModelConfig& config,
                                       const SequencePlace& place, int fd,
                                       const StateSection& section) {
  CONVOY_CHECK_OP(section.bytes, ==, gdn_state_bytes(config) + conv_state_bytes(config));
  Writing file(*this, fd, section.offset);
  const auto as_it_is = [](std::byte*) {};
  if (Status status =
          file.put(layer.recurrent_slot(place.state_slot), gdn_state_bytes(config), as_it_is);
      !status)
    return Error{status.error()};
  if (Status status =
          file.put(layer.conv_slot(place.state_slot), conv_state_bytes(config), as_it_is);
      !status)
    return Error{status.error()};
  return file.hash();
}

Status LayerStateMover::load(const AttentionLayer& layer, const ModelConfig& /*config*/,
                             const SequencePlace& place, int fd, const StateSection& section) {
  CONVOY_CHECK_OP(section.bytes, ==, 2 * place.pages.size() * layer.page_bytes());
  Reading file(*this, fd, section.offset);
  for (const int32_t page : place.pages) {
    for (std::byte* to : {layer.k_page(page), layer.v_page(page)}) {
      if (Status status = file.get(to, layer.page_bytes()); !status) return status;
    }
  }
  return file.compare(section);
}

Status LayerStateMover::load(const GdnLayer& layer, const ModelConfig& config,
                             const SequencePlace& place, int fd, const StateSection& section) {
  CONVOY_CHECK_OP(section.bytes, ==, gdn_state_bytes(config) + conv_state_bytes(config));
  Reading file(*this, fd, section.offset);
  if (Status status = file.get(layer.recurrent_slot(place.state_slot), gdn_state_bytes(config));
      !status)
    return status;
  if (Status status = file.get(layer.conv_slot(place.state_slot), conv_state_bytes(config));
      !status)
    return status;
  return file.compare(section);
}

}  // namespace convoy
