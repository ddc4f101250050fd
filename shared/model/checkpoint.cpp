#include "shared/model/checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "shared/model/safetensors.h"
#include "shared/model/text_tensors.h"

namespace convoy {
namespace {

using TensorMap = std::map<std::string, TensorInfo, std::less<>>;
using FileMap = std::map<std::string, FileStamp, std::less<>>;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr uint64_t kIndexLimitBytes = 100'000'000;
constexpr std::array<std::string_view, 2> kTextPrefixes = {"model.language_model.", "model."};
constexpr std::string_view kHeadName = "lm_head.weight";

bool is_there(const std::filesystem::path& path) {
  std::error_code error;  // an unreadable path is reported when it is opened
  return std::filesystem::status(path, error).type() != std::filesystem::file_type::not_found;
}

TensorMap read_single(const std::filesystem::path& path, FileMap& files) {
  const RegularFile file = open_regular_file(path);
  files.emplace(path.filename().string(), file.stamp);
  TensorMap tensors;
  for (TensorInfo& tensor : read_safetensors_header(file)) {
    std::string name = tensor.name;
    tensors.emplace(std::move(name), std::move(tensor));
  }
  return tensors;
}

/// The index decides which shard a tensor is read from; what a shard holds beyond that is ignored.
TensorMap read_sharded(const std::filesystem::path& index_path, FileMap& files) {
  const std::filesystem::path directory = index_path.parent_path();
  const auto shard_of =
      parse_shard_index(read_text_file(index_path, kIndexLimitBytes), index_path.string());
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) shards.insert(shard);

  TensorMap tensors;
  for (const std::string& shard : shards) {
    if (!is_there(directory / shard)) {
      throw StartError(fmt::format("{}: no such file; {} names it", (directory / shard).string(),
                                   index_path.string()));
    }
    for (auto& [name, tensor] : read_single(directory / shard, files)) {
      const auto entry = shard_of.find(name);
      if (entry != shard_of.end() && entry->second == shard)
        tensors.emplace(name, std::move(tensor));
    }
  }
  for (const auto& [name, shard] : shard_of) {
    if (tensors.contains(name)) continue;
    throw StartError(fmt::format("{}: tensor {} is not in this file, though {} says so",
                                 (directory / shard).string(), name, index_path.string()));
  }
  return tensors;
}

std::string_view text_prefix(const TensorMap& found, const std::string& where) {
  for (const std::string_view prefix : kTextPrefixes) {
    if (found.contains(std::string(prefix) + "embed_tokens.weight")) return prefix;
  }
  throw StartError(
      fmt::format("{}: tensor {}embed_tokens.weight (or {}embed_tokens.weight) is "
                  "missing",
                  where, kTextPrefixes[0], kTextPrefixes[1]));
}

[[noreturn]] void refuse_missing(const std::string& name, const TensorMap& found,
                                 const std::string& where) {
  std::string hint;
  if (name == kHeadName) {
    hint = "; config.json says tie_word_embeddings false, so a head of its own is expected";
  }
  const std::string stem = name.substr(0, name.rfind('.'));
  for (const std::string_view suffix : {".qweight", ".weight_packed"}) {
    if (!found.contains(stem + std::string(suffix))) continue;
    hint = fmt::format("; {}{} is there: quantised weights are not supported, allowed: BF16", stem,
                       suffix);
  }
  throw StartError(fmt::format("{}: tensor {} is missing{}", where, name, hint));
}

void check_required(const RequiredTensor& required, const TensorInfo& tensor,
                    const std::filesystem::path& directory) {
  const auto where = [&] {
    return fmt::format("{}: tensor {}", (directory / tensor.file).string(), tensor.name);
  };
  if (tensor.shape != required.shape) {
    throw StartError(fmt::format("{} has shape {}; config.json asks for {}", where(),
                                 shape_text(tensor.shape), shape_text(required.shape)));
  }
  const bool allowed =
      tensor.dtype == DType::bf16 || (required.f32_allowed && tensor.dtype == DType::f32);
  if (!allowed) {
    throw StartError(fmt::format("{} is {}; allowed: {}", where(), dtype_name(tensor.dtype),
                                 required.f32_allowed ? "BF16, F32" : "BF16"));
  }
}

bool belongs_elsewhere(std::string_view name) {
  return name.starts_with("mtp.") || name.starts_with("model.visual.");
}

void log_unused(const TensorMap& unused, const std::string& where) {
  uint64_t count = 0;
  std::string_view first;
  for (const auto& [name, tensor] : unused) {
    if (belongs_elsewhere(name)) continue;
    if (count++ == 0) first = name;
  }
  if (count == 0) return;
  log(LogLevel::debug, fmt::format("{}: {} tensors that the text model does not use are ignored; "
                                   "the first is {}",
                                   where, count, first));
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& directory, LoadFormat format) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.config_ = read_model_config(directory);
  checkpoint.format_ = format;
  if (format == LoadFormat::dummy) {
    checkpoint.invent_tensors();
    return checkpoint;
  }
  const std::filesystem::path single = directory / kSingleFile;
  const std::filesystem::path index = directory / kIndexFile;
  if (is_there(single)) {
    checkpoint.require_tensors(read_single(single, checkpoint.files_), single.string());
  } else if (is_there(index)) {
    checkpoint.require_tensors(read_sharded(index, checkpoint.files_), index.string());
  } else {
    throw StartError(
        fmt::format("{}: holds neither {} nor {}", directory.string(), kSingleFile, kIndexFile));
  }
  return checkpoint;
}

void Checkpoint::invent_tensors() {
  const auto invent = [&](const RequiredTensor& required) {
    TensorInfo info;
    info.name = required.name;
    info.shape = required.shape;
    info.bytes = dtype_bytes(info.dtype);
    for (const int64_t extent : info.shape) info.bytes *= static_cast<uint64_t>(extent);
    const uint64_t bytes = info.bytes;
    tensors_.emplace(required.name, std::move(info));
    return bytes;
  };
  for (const RequiredTensor& required : root_tensors(config_)) invent(required);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    uint64_t bytes = 0;
    for (const RequiredTensor& required : layer_tensors(config_, layer)) bytes += invent(required);
    layer_bytes_.push_back(bytes);
  }
}

void Checkpoint::require_tensors(TensorMap&& found, const std::string& where) {
  const std::string_view prefix = text_prefix(found, where);
  const auto take = [&](const RequiredTensor& required) {
    const std::string name =
        required.name == kHeadName ? required.name : std::string(prefix) + required.name;
    auto entry = found.extract(name);
    if (entry.empty()) refuse_missing(name, found, where);
    check_required(required, entry.mapped(), directory_);
    const uint64_t bytes = entry.mapped().bytes;
    tensors_.emplace(required.name, std::move(entry.mapped()));
    return bytes;
  };
  for (const RequiredTensor& required : root_tensors(config_)) take(required);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    uint64_t bytes = 0;
    for (const RequiredTensor& required : layer_tensors(config_, layer)) bytes += take(required);
    layer_bytes_.push_back(bytes);
  }
  log_unused(found, where);
}

const TensorInfo& Checkpoint::tensor(std::string_view name) const {
  const auto entry = tensors_.find(name);
  CONVOY_CHECK(entry != tensors_.end(), "no tensor " + std::string(name) + " in this text model");
  return entry->second;
}

MappedTensor Checkpoint::map(std::string_view name) const {
  CONVOY_CHECK(format_ == LoadFormat::automatic, "a tensor of a checkpoint without files");
  const TensorInfo& info = tensor(name);
  const std::filesystem::path path = directory_ / info.file;
  const RegularFile file = open_regular_file(path);
  const FileStamp& checked = files_.find(info.file)->second;
  // Bytes behind a shortened end would be SIGBUS instead of an error, and a rewritten file has
  // other offsets.
  if (file.stamp != checked) {
    throw StartError(
        fmt::format("{}: changed since it was checked ({} bytes then, {} now); tensor "
                    "{} is not read",
                    path.string(), checked.bytes, file.stamp.bytes, info.name));
  }
  MappedTensor mapped(info, file.fd.get(), path);
  mapped_bytes_->fetch_add(info.bytes, std::memory_order_relaxed);
  return mapped;
}

uint64_t Checkpoint::layer_bytes(int layer) const {
  CONVOY_CHECK(layer >= 0 && layer < config_.num_layers, "layer " + std::to_string(layer));
  return layer_bytes_[static_cast<std::size_t>(layer)];
}

uint64_t Checkpoint::head_bytes() const {
  return config_.tie_word_embeddings ? 0 : tensor(kHeadName).bytes;
}

}  // namespace convoy
