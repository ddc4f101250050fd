#include "shared/stage/weights.h"

#include "base/check.h"

namespace convoy {
namespace {

int stored_rows(const TensorInfo& info) {
  return static_cast<int>(info.shape.front());
}

}  // namespace

WeightSet::WeightSet(Device& device, Stream& stream, const Checkpoint& checkpoint,
                     const std::vector<WeightSpec>& table, const std::string& prefix,
                     const LoadProgress& progress) {
  for (const WeightSpec& spec : table) {
    const uint64_t size = weight_bytes(spec, device.kind());
    Buffer buffer = device.allocate(size, prefix + spec.role);
    int first_row = 0;
    for (const std::string& name : spec.tensors) {
      const MappedTensor tensor = checkpoint.map(prefix + name);
      switch (spec.form) {
        case WeightForm::linear:
          device.ops().pack_linear(tensor.data(), stored_rows(tensor.info()), first_row,
                                   spec.out_features, spec.in_features, buffer.data());
          first_row += stored_rows(tensor.info());
          break;
        case WeightForm::table:
          CONVOY_CHECK_OP(tensor.bytes(), ==, size);
          stream.copy(buffer.data(), tensor.data(), size);
          break;
        case WeightForm::vector: {
          const std::vector<float> values = to_f32(tensor);
          CONVOY_CHECK_OP(values.size() * sizeof(float), ==, size);
          stream.copy(buffer.data(), values.data(), size);
          break;
        }
      }
      stream.synchronize();
      if (progress) progress(tensor.bytes());
    }
    if (spec.form == WeightForm::linear) CONVOY_CHECK_OP(first_row, ==, spec.out_features);
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
