#include "shared/stage/weight_loader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "shared/stage/random_weights.h"

namespace convoy {
namespace {

int stored_rows(const TensorInfo& info) {
  return static_cast<int>(info.shape.front());
}

std::byte* row_of(const WeightSpec& spec, int row, void* destination) {
  return static_cast<std::byte*>(destination) +
         static_cast<ptrdiff_t>(row) * spec.in_features * static_cast<ptrdiff_t>(sizeof(uint16_t));
}

}  // namespace

WeightLoader::WeightLoader(Device& device, Stream& stream, const Checkpoint& checkpoint,
                           LoadProgress progress)
    : device_(device), stream_(stream), checkpoint_(checkpoint), progress_(std::move(progress)) {}

void WeightLoader::load(const WeightSpec& spec, const std::string& prefix, void* destination) {
  int first_row = 0;
  for (const std::string& tensor : spec.tensors) {
    const std::string name = prefix + tensor;
    const TensorInfo& info = checkpoint_.tensor(name);
    if (checkpoint_.format() == LoadFormat::dummy)
      make_random(spec, name, first_row, destination);
    else
      load_stored(spec, name, first_row, destination);
    first_row += stored_rows(info);
    if (progress_) progress_(info.bytes);
  }
  if (spec.form == WeightForm::linear) CONVOY_CHECK_OP(first_row, ==, spec.out_features);
}

void WeightLoader::finish() {
  if (staged_) staged_->finish();
  stream_.synchronize();
}

void WeightLoader::load_stored(const WeightSpec& spec, const std::string& name, int first_row,
                               void* destination) {
  const MappedTensor tensor = checkpoint_.map(name);
  const int rows = stored_rows(tensor.info());
  switch (spec.form) {
    case WeightForm::linear:
      if (device_.kind() == DeviceKind::cuda) {  // packed is row-major there (LinearWeight)
        copy_to_device(row_of(spec, first_row, destination), tensor.data(), tensor.bytes());
      } else {
        device_.ops().pack_linear(tensor.data(), rows, first_row, spec.out_features,
                                  spec.in_features, destination);
      }
      break;
    case WeightForm::table:
      CONVOY_CHECK_OP(tensor.bytes(), ==, weight_bytes(spec, device_.kind()));
      copy_to_device(destination, tensor.data(), tensor.bytes());
      break;
    case WeightForm::vector: {
      const std::vector<float> values = to_f32(tensor);
      CONVOY_CHECK_OP(values.size() * sizeof(float), ==, weight_bytes(spec, device_.kind()));
      stream_.copy(destination, values.data(), values.size() * sizeof(float));
      stream_.synchronize();
      break;
    }
  }
}

void WeightLoader::copy_to_device(void* destination, const void* source, size_t bytes) {
  if (device_.kind() == DeviceKind::cpu) {
    stream_.copy(destination, source, bytes);
    return;
  }
  if (!staged_) staged_ = std::make_unique<StagedCopy>(device_);
  staged_->copy(destination, source, bytes);
}

void WeightLoader::make_random(const WeightSpec& spec, const std::string& name, int first_row,
                               void* destination) {
  const RandomRange range = random_range(name, spec.form != WeightForm::vector);
  int64_t count = 1;
  for (const int64_t extent : checkpoint_.tensor(name).shape) count *= extent;
  FillRandomArgs fill{.out = destination,
                      .count = count,
                      .f32_out = spec.form == WeightForm::vector,
                      .seed = random_seed(name),
                      .centre = range.centre,
                      .spread = range.spread};
  if (spec.form == WeightForm::linear && device_.kind() == DeviceKind::cpu) {
    make_random_panels(spec, fill, stored_rows(checkpoint_.tensor(name)), first_row, destination);
    return;
  }
  if (spec.form == WeightForm::linear) fill.out = row_of(spec, first_row, destination);
  device_.ops().fill_random(stream_, fill);
}

// Row-major values first, a slice of rows at a time, then packed.
void WeightLoader::make_random_panels(const WeightSpec& spec, FillRandomArgs fill, int rows,
                                      int first_row, void* destination) {
  constexpr int kSliceRows = 1024;  // times any number of columns a multiple of 4
  const size_t row_bytes = static_cast<size_t>(spec.in_features) * sizeof(uint16_t);
  const Buffer slice =
      device_.allocate(static_cast<size_t>(std::min(rows, kSliceRows)) * row_bytes, "random rows");
  fill.out = slice.data();
  for (int row = 0; row < rows; row += kSliceRows) {
    const int count = std::min(kSliceRows, rows - row);
    fill.first = static_cast<uint64_t>(row) * static_cast<uint64_t>(spec.in_features);
    fill.count = static_cast<int64_t>(count) * spec.in_features;
    device_.ops().fill_random(stream_, fill);
    stream_.synchronize();
    device_.ops().pack_linear(slice.data(), count, first_row + row, spec.out_features,
                              spec.in_features, destination);
  }
}

}  // namespace convoy
