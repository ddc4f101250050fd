#include "shared/state/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/exit_code.h"
#include "base/file_io.h"
#include "shared/model/regular_file.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxTokens = 1U << 26;
constexpr size_t kPieceBytes = size_t{1} << 20;

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw StartError(fmt::format("state {}: {}", path.native(), what));
}

[[noreturn]] void refuse_system(const fs::path& path, const char* what) {
  refuse(path, fmt::format("{}: {}", what, std::strerror(errno)));
}

const char* kind_name(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : "cuda";
}

uint64_t header_hash(const StateHeader& header) {
  return state_hash(&header, offsetof(StateHeader, header_hash));
}

// Exactly `bytes`, or the file is too short for what its header says.
void read_all(int fd, void* data, size_t bytes, uint64_t offset, const fs::path& path) {
  const auto got = read_at(fd, data, bytes, offset);
  if (!got) refuse(path, fmt::format("cannot be read: {}", got.error()));
  if (got.value() < bytes)
    refuse(path, fmt::format("ends at byte {}, where more should be", offset + got.value()));
}

uint64_t size_of(const UniqueFd& file, const fs::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) refuse_system(path, "cannot be looked at");
  return static_cast<uint64_t>(status.st_size);
}

StateHeader read_header(const UniqueFd& file, const fs::path& path) {
  const uint64_t size = size_of(file, path);
  StateHeader header{};
  if (size < sizeof(header))
    refuse(path, fmt::format("has {} bytes, a state begins with {}", size, sizeof(header)));
  read_all(file.get(), &header, sizeof(header), 0, path);
  if (header.magic != kStateMagic) refuse(path, "is no saved state");
  if (header.version != kStateVersion) {
    refuse(path, fmt::format("has version {}, this build reads {}", header.version, kStateVersion));
  }
  if (header.header_hash != header_hash(header)) refuse(path, "its header was altered");
  if (size != header.file_bytes) {
    refuse(path, fmt::format("has {} bytes, its header says {}: it was cut or added to", size,
                             header.file_bytes));
  }
  if (header.layers < 1 || header.layers > kMaxLayers || header.tokens < 1 ||
      header.tokens > kMaxTokens || header.prompt_tokens < 1 ||
      header.prompt_tokens > header.tokens || header.device_kind > 1 ||
      header.kv_dtype >= kKvDtypes ||
      header.text > static_cast<uint32_t>(StateText::inside_reasoning) || header.reserved != 0) {
    refuse(path, fmt::format("{} layers, {} tokens, {} of them prompt, device kind {}, KV dtype "
                             "{}, text {}",
                             header.layers, header.tokens, header.prompt_tokens, header.device_kind,
                             header.kv_dtype, header.text));
  }
  return header;
}

std::vector<int32_t> read_ids(const UniqueFd& file, const StateHeader& header,
                              const fs::path& path) {
  std::vector<int32_t> ids(size_t{header.tokens} + 1);
  read_all(file.get(), ids.data(), ids.size() * sizeof(int32_t), header.ids_offset, path);
  if (state_hash(ids.data(), ids.size() * sizeof(int32_t)) != header.ids_hash)
    refuse(path, "its token ids were altered");
  return ids;
}

std::vector<StateSection> read_table(const UniqueFd& file, const StateHeader& header,
                                     const fs::path& path) {
  std::vector<StateSection> table(header.layers);
  read_all(file.get(), table.data(), table.size() * sizeof(StateSection), header.table_offset,
           path);
  if (state_hash(table.data(), table.size() * sizeof(StateSection)) != header.table_hash)
    refuse(path, "its table of layers was altered");
  return table;
}

// A rename would put the file in the place of a device, a pipe or a socket.
fs::path target_of(const fs::path& path) {
  const auto found = follow_links(path);
  if (!found) refuse(path, fmt::format("cannot be written: {}", found.error()));
  const fs::path& target = found.value();
  struct stat status {};
  if (!target.has_filename() || (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)))
    refuse(path, "is no regular file");
  return target;
}

UniqueFd create(const fs::path& temporary, const fs::path& path) {
  UniqueFd file(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) refuse_system(path, "cannot be written");
  return file;
}

}  // namespace

void check_state_target(const fs::path& path, uint64_t bytes) {
  // Permissions alone do not say what a file system takes.
  const fs::path temporary = temporary_beside(target_of(path));
  const UniqueFd file = create(temporary, path);
  ::unlink(temporary.c_str());
  struct statvfs room {};
  if (::fstatvfs(file.get(), &room) != 0) return;
  if (const uint64_t free = uint64_t{room.f_bavail} * room.f_frsize; free < bytes) {
    refuse(path, fmt::format("needs {} bytes, its file system has {} free", bytes, free));
  }
}

StateFileWriter::StateFileWriter(const fs::path& path, const ModelConfig& config,
                                 StateDescription description)
    : path_(path),
      target_(target_of(path)),
      temporary_(temporary_beside(target_)),
      description_(std::move(description)),
      layout_(state_layout(config, description_.kv_dtype, description_.tokens())),
      hashed_(layout_.layers.size(), false) {
  CONVOY_CHECK(description_.ids.size() >= 2 && description_.prompt_tokens >= 1 &&
                   description_.prompt_tokens <= description_.tokens(),
               "a state of at least one token and what follows it");
  file_ = create(temporary_, path_);
  // Here, where it has a name, and not as SIGBUS or half a file later.
  if (const int error = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(layout_.file_bytes));
      error != 0) {
    ::unlink(temporary_.c_str());
    errno = error;
    refuse_system(path_, fmt::format("no room for {} bytes", layout_.file_bytes).c_str());
  }
}

StateFileWriter::~StateFileWriter() {
  if (file_) ::unlink(temporary_.c_str());
}

void StateFileWriter::set_hash(int layer, uint64_t hash) {
  layout_.layers.at(static_cast<size_t>(layer)).hash = hash;
  hashed_.at(static_cast<size_t>(layer)) = true;
}

void StateFileWriter::write_at(const void* data, size_t bytes, uint64_t offset) const {
  if (const Status status = convoy::write_at(file_.get(), data, bytes, offset); !status)
    refuse(path_, fmt::format("cannot be written: {}", status.error()));
}

void StateFileWriter::commit() {
  CONVOY_CHECK(std::find(hashed_.begin(), hashed_.end(), false) == hashed_.end(),
               "a layer was not written");
  const size_t table_bytes = layout_.layers.size() * sizeof(StateSection);
  StateHeader header{};
  header.magic = kStateMagic;
  header.version = kStateVersion;
  header.device_kind = static_cast<uint32_t>(description_.kind);
  header.kv_dtype = static_cast<uint32_t>(description_.kv_dtype);
  header.layers = static_cast<uint32_t>(layout_.layers.size());
  header.tokens = description_.tokens();
  header.prompt_tokens = description_.prompt_tokens;
  header.text = static_cast<uint32_t>(description_.text);
  header.model = description_.model;
  header.ids_offset = layout_.ids_offset;
  header.table_offset = layout_.table_offset;
  header.file_bytes = layout_.file_bytes;
  header.ids_hash = state_hash(description_.ids.data(), layout_.ids_bytes);
  header.table_hash = state_hash(layout_.layers.data(), table_bytes);
  header.header_hash = header_hash(header);
  write_at(description_.ids.data(), layout_.ids_bytes, layout_.ids_offset);
  write_at(layout_.layers.data(), table_bytes, layout_.table_offset);
  write_at(&header, sizeof(header), 0);
  if (::fsync(file_.get()) != 0) refuse_system(path_, "cannot be written");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    refuse_system(path_, "cannot take its name");
  file_ = UniqueFd();
}

StateFileReader::StateFileReader(const fs::path& path, const ModelConfig& config, DeviceKind kind,
                                 KvDtype kv_dtype, uint64_t model)
    : path_(path), file_(open_regular_file(path).fd) {
  const StateHeader header = read_header(file_, path_);
  const auto saved_kind = static_cast<DeviceKind>(header.device_kind);
  if (header.model != model || header.layers != static_cast<uint32_t>(config.num_layers))
    refuse(path_, "was saved with another model");
  if (saved_kind != kind) {
    refuse(path_, fmt::format("was saved on {} devices and cannot go on on {}",
                              kind_name(saved_kind), kind_name(kind)));
  }
  if (const auto saved_dtype = static_cast<KvDtype>(header.kv_dtype); saved_dtype != kv_dtype) {
    refuse(path_, fmt::format("has keys and values as {}, this run keeps them as {} (--kv-dtype)",
                              kv_dtype_name(saved_dtype), kv_dtype_name(kv_dtype)));
  }
  layout_ = state_layout(config, kv_dtype, header.tokens);
  if (header.ids_offset != layout_.ids_offset || header.table_offset != layout_.table_offset ||
      header.file_bytes != layout_.file_bytes)
    refuse(path_, "its layout is not the one of this model");
  description_ = {.kind = kind,
                  .kv_dtype = kv_dtype,
                  .model = model,
                  .ids = read_ids(file_, header, path_),
                  .prompt_tokens = header.prompt_tokens,
                  .text = static_cast<StateText>(header.text)};
  for (const int32_t id : description_.ids) {
    if (id < 0 || id >= config.vocab_size)
      refuse(path_, fmt::format("token id {} is not in the model's vocabulary of {}", id,
                                config.vocab_size));
  }
  const std::vector<StateSection> table = read_table(file_, header, path_);
  for (size_t layer = 0; layer < table.size(); ++layer) {
    if (table[layer].offset != layout_.layers[layer].offset ||
        table[layer].bytes != layout_.layers[layer].bytes)
      refuse(path_, fmt::format("layer {} is not where it belongs", layer));
    layout_.layers[layer].hash = table[layer].hash;
  }
}

StateSummary read_state_summary(const fs::path& path) {
  const UniqueFd file = open_regular_file(path).fd;
  StateSummary summary{};
  summary.header = read_header(file, path);
  const StateHeader& header = summary.header;
  // Before anything as large is allocated.
  if (header.ids_offset > header.file_bytes || header.table_offset > header.file_bytes ||
      (uint64_t{header.tokens} + 1) * sizeof(int32_t) > header.file_bytes ||
      header.layers * sizeof(StateSection) > header.file_bytes)
    refuse(path, "its header and its size do not agree");
  summary.ids = read_ids(file, header, path);
  summary.layers = read_table(file, header, path);
  std::vector<std::byte> piece(kPieceBytes);
  for (size_t layer = 0; layer < summary.layers.size(); ++layer) {
    const StateSection& section = summary.layers[layer];
    if (section.offset > header.file_bytes || section.bytes > header.file_bytes - section.offset)
      refuse(path, fmt::format("layer {} lies outside the file", layer));
    StateHash hash;
    for (uint64_t at = 0; at < section.bytes;) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(kPieceBytes, section.bytes - at));
      read_all(file.get(), piece.data(), count, section.offset + at, path);
      hash.add(piece.data(), count);
      at += count;
    }
    if (hash.value() != section.hash) refuse(path, fmt::format("layer {} was altered", layer));
  }
  return summary;
}

}  // namespace convoy
