// Times the operations of Gated DeltaNet layers on a CUDA device, at the shape of a 27B model.
//
//   convoy_gdn_bench [device]
//
// Steps run as graphs over so many layers that no state is still in the cache when its turn comes.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/ops/op_set.h"
#include "kernels/ops/scratch.h"

namespace convoy {
namespace {

constexpr int kKeyHeads = 16, kValueHeads = 48, kDim = 128;
constexpr int kValues = kValueHeads * kDim;
constexpr int kChannels = 2 * kKeyHeads * kDim + kValues;
constexpr int kRow = kChannels + kValues + 2 * kValueHeads;
constexpr size_t kStateBytes = sizeof(float) * kValues * kDim;
constexpr size_t kConvBytes = sizeof(float) * 3 * kChannels;
constexpr int kPromptTokens = 1024;

class Bench {
 public:
  explicit Bench(Device& device) : device_(device), stream_(device.make_stream()) {}

  Buffer bf16(size_t count, float scale) {
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) {
      const float x = std::uniform_real_distribution<float>(-scale, scale)(random_);
      value = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
    }
    return upload(values);
  }
  Buffer f32(size_t count, float low, float high) {
    std::vector<float> values(count);
    for (float& value : values) value = std::uniform_real_distribution<float>(low, high)(random_);
    return upload(values);
  }
  template <typename T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer = device_.allocate(values.size() * sizeof(T), "benchmark");
    stream_->copy(buffer.data(), values.data(), values.size() * sizeof(T));
    stream_->synchronize();
    return buffer;
  }
  // Slot l for lane l.
  Buffer control(int lanes, int width) {
    std::vector<ControlRow> rows;
    for (int column = 0; column < lanes * width; ++column) {
      const int lane = column / width;
      rows.push_back({column % width, {0, 0, 0}, lane, width, lane, lane});
    }
    return upload(rows);
  }
  // `work` enqueues `count` times what is timed.
  void time(const char* name, int count, double bytes, const std::function<void()>& work) {
    const auto graph = device_.capture(*stream_, work);
    const auto begin = device_.make_event(), end = device_.make_event();
    double best_us = 1e30;
    for (int run = 0; run < 12; ++run) {
      begin->record(*stream_);
      graph->launch(*stream_);
      end->record(*stream_);
      stream_->synchronize();
      best_us = std::min(best_us, end->ms_since(*begin) * 1e3 / count);
    }
    std::printf("%-34s %8.2f us  %6.2f TB/s\n", name, best_us, bytes / best_us * 1e-6);
  }
  Stream& stream() { return *stream_; }
  OpSet& ops() { return device_.ops(); }
  Device& device() { return device_; }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::mt19937 random_{1};
};

struct Parameters {
  Buffer conv, a_log, dt_bias, norm;
  explicit Parameters(Bench& bench)
      : conv(bench.f32(size_t{kChannels} * 4, -0.5F, 0.5F)),
        a_log(bench.f32(kValueHeads, -3.0F, 0.0F)),
        dt_bias(bench.f32(kValueHeads, -3.0F, 1.0F)),
        norm(bench.f32(kDim, 0.5F, 1.5F)) {}
};

void time_generate(Bench& bench, const Parameters& parameters, int lanes, int width) {
  constexpr size_t kColdBytes = size_t{200} << 20;
  const size_t step_bytes = kStateBytes * static_cast<size_t>(lanes);
  const auto layers = static_cast<int>(std::max<size_t>(4, kColdBytes / step_bytes));
  const auto columns = static_cast<size_t>(lanes * width);
  const Buffer control = bench.control(lanes, width);
  const Buffer projection = bench.bf16(columns * kRow, 2.0F);
  const Buffer out = bench.bf16(columns * kValues, 1.0F);
  const Buffer mixed = bench.bf16(columns * kChannels, 1.0F);
  const Buffer gates = bench.f32(2 * columns * kValueHeads, 0.0F, 1.0F);
  std::vector<Buffer> state, conv;
  for (int layer = 0; layer < layers; ++layer) {
    state.push_back(bench.device().allocate(step_bytes, "state"));
    conv.push_back(bench.device().allocate(kConvBytes * static_cast<size_t>(lanes), "state"));
  }
  const double bytes = static_cast<double>(
      2 * (kStateBytes + kConvBytes) * static_cast<size_t>(lanes) + columns * (kRow + kValues) * 2);
  char name[64];
  std::snprintf(name, sizeof(name), "gdn_generate %2d lanes x %2d", lanes, width);
  bench.time(name, layers, bytes, [&] {
    for (int layer = 0; layer < layers; ++layer) {
      const auto l = static_cast<size_t>(layer);
      bench.ops().gdn_generate(bench.stream(), {.step = {control.as<ControlRow>(), lanes, width,
                                                         PositionClass::generated},
                                                .projection = projection.data(),
                                                .column_stride = kRow,
                                                .conv_weight = parameters.conv.as<float>(),
                                                .conv_state = conv[l].as<float>(),
                                                .a_log = parameters.a_log.as<float>(),
                                                .dt_bias = parameters.dt_bias.as<float>(),
                                                .norm = parameters.norm.as<float>(),
                                                .state = state[l].as<float>(),
                                                .key_heads = kKeyHeads,
                                                .value_heads = kValueHeads,
                                                .key_dim = kDim,
                                                .value_dim = kDim,
                                                .mixed = mixed.data(),
                                                .gates = gates.as<float>(),
                                                .out = out.data()});
    }
  });
}

void time_prompt(Bench& bench, const Parameters& parameters) {
  constexpr int kRepeats = 10;
  constexpr size_t kColumns = kPromptTokens;
  const Buffer control = bench.control(1, kPromptTokens);
  const Buffer projection = bench.bf16(kColumns * kRow, 2.0F);
  const Buffer mixed = bench.bf16(kColumns * kChannels, 1.0F);
  const Buffer out = bench.bf16(kColumns * kValues, 1.0F);
  const Buffer g = bench.f32(kColumns * kValueHeads, -0.3F, 0.0F);
  const Buffer beta = bench.f32(kColumns * kValueHeads, 0.0F, 1.0F);
  const Buffer state = bench.device().allocate(kStateBytes, "state");
  const Buffer conv = bench.device().allocate(kConvBytes, "state");
  const Buffer scratch = bench.device().allocate(
      gdn_scratch_bytes(DeviceKind::cuda, {kKeyHeads, kValueHeads, kDim, kDim}, 1, kPromptTokens),
      "scratch");
  const StepView step{control.as<ControlRow>(), 1, kPromptTokens, PositionClass::prompt};
  const auto repeat = [&](const char* name, double bytes, const std::function<void()>& once) {
    bench.time(name, kRepeats, bytes, [&] {
      for (int i = 0; i < kRepeats; ++i) once();
    });
  };
  repeat("causal_conv 1024 tokens", 2.0 * kColumns * kChannels * 2, [&] {
    bench.ops().causal_conv(bench.stream(), {.step = step,
                                             .u = projection.data(),
                                             .u_column_stride = kRow,
                                             .weight = parameters.conv.as<float>(),
                                             .state = conv.as<float>(),
                                             .channels = kChannels,
                                             .out = mixed.data()});
  });
  repeat("gdn_chunk 1024 tokens", 2.0 * kColumns * (kChannels + kValues), [&] {
    bench.ops().gdn_chunk(bench.stream(), {.step = step,
                                           .qkv = mixed.data(),
                                           .g = g.as<float>(),
                                           .beta = beta.as<float>(),
                                           .state = state.as<float>(),
                                           .key_heads = kKeyHeads,
                                           .value_heads = kValueHeads,
                                           .key_dim = kDim,
                                           .value_dim = kDim,
                                           .out = out.data(),
                                           .scratch = scratch.data()});
  });
  repeat("gated_rms_norm 1024 tokens", 2.0 * kColumns * 3 * kValues, [&] {
    bench.ops().gated_rms_norm(bench.stream(), {.o = out.data(),
                                                .z = projection.as<uint16_t>() + kChannels,
                                                .z_row_stride = kRow,
                                                .out = out.data(),
                                                .weight = parameters.norm.as<float>(),
                                                .rows = kPromptTokens,
                                                .heads = kValueHeads,
                                                .size = kDim});
  });
}

void run(const char* id) {
  const auto device = make_cuda_device({.id = id});
  Bench bench(*device);
  std::printf("%s\n", device->info().name.c_str());
  const Parameters parameters(bench);
  for (const int lanes : {1, 4, 16}) time_generate(bench, parameters, lanes, 1);
  time_generate(bench, parameters, 1, 4);
  time_generate(bench, parameters, 1, 16);
  time_prompt(bench, parameters);
}

}  // namespace
}  // namespace convoy

int main(int argc, char** argv) {
  try {
    convoy::run(argc > 1 ? argv[1] : "cuda:0");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
