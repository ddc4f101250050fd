#include "shared/stage/weights.h"

#include "base/check.h"

namespace convoy {

WeightSet::WeightSet(WeightLoader& loader, const std::vector<WeightSpec>& table,
                     const std::string& prefix) {
  load(loader, table, prefix);
}

WeightSet::WeightSet(Device& device, Stream& stream, const Checkpoint& checkpoint,
                     const std::vector<WeightSpec>& table, const std::string& prefix,
                     const LoadProgress& progress) {
  WeightLoader loader(device, stream, checkpoint, progress);
  load(loader, table, prefix);
  loader.finish();
}

void WeightSet::load(WeightLoader& loader, const std::vector<WeightSpec>& table,
                     const std::string& prefix) {
  for (const WeightSpec& spec : table) {
    const uint64_t size = weight_bytes(spec, loader.device().kind());
    Buffer buffer = loader.device().allocate(size, prefix + spec.role);
    loader.load(spec, prefix, buffer.data());
    bytes_ += size;
    entries_.emplace(spec.role, Entry{spec, std::move(buffer)});
  }
}

const WeightSet::Entry& WeightSet::entry(const std::string& role, WeightForm form) const {
  const auto found = entries_.find(role);
  CONVOY_CHECK(found != entries_.end() && found->second.spec.form == form,
               "no weight '" + role + "' of that form");
  return found->second;
}

LinearWeight WeightSet::linear(const std::string& role) const {
  const Entry& e = entry(role, WeightForm::linear);
  return {e.buffer.as<uint16_t>(), e.spec.out_features, e.spec.in_features};
}

const float* WeightSet::vector(const std::string& role) const {
  return entry(role, WeightForm::vector).buffer.as<float>();
}

const uint16_t* WeightSet::table(const std::string& role) const {
  return entry(role, WeightForm::table).buffer.as<uint16_t>();
}

}  // namespace convoy
