// How close the linear layers come to the card. Generated class: chains of [swiglu of the columns,
// linear] as a model runs them, captured in a graph, every linear with another weight; bytes of
// weights a second against a copy of the same memory (which counts what it reads and what it
// writes). Prompt class: multiply-adds a second at 1024 rows.
//
//   convoy_cuda_linear_bench [device]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/ops/op_set.h"

namespace convoy {
namespace {

constexpr int kRounds = 7;
constexpr size_t kPoolBytes = size_t{12} << 30;  // of weights: many times the cache
constexpr int kLayers = 24;
constexpr int kPromptRows = 1024;
constexpr int kColumns[] = {1, 4, 8, 16, 32, 64};

struct Layer {
  int out_features, in_features;
  bool prompts = true;
};
// A 27B model's, and its head.
constexpr Layer kModel[] = {{34816, 5120}, {5120, 17408}, {16480, 5120},
                            {14336, 5120}, {5120, 6144},  {248320, 5120, false}};

class Bench {
 public:
  explicit Bench(const std::string& id)
      : device_(make_cuda_device({id})),
        stream_(device_->make_stream()),
        pool_(device_->allocate(kPoolBytes, "bench weights")) {
    FillRandomArgs fill;
    fill.out = pool_.data();
    fill.count = static_cast<int64_t>(kPoolBytes / 2);
    device_->ops().fill_random(*stream_, fill);
    std::printf("%s, %s\n", device_->info().name.c_str(), device_->info().architecture.c_str());
  }

  void run() {
    const size_t half = kPoolBytes / 2;
    const double copy_us =
        microseconds([&] { stream_->copy(pool_.as<char>(), pool_.as<char>() + half, half); });
    copy_rate_ = 2.0 * static_cast<double>(half) / copy_us / 1e6;
    std::printf("copy %.3f TB/s, read and written\n", copy_rate_);
    for (const Layer& layer : kModel) {
      for (const int columns : kColumns) generated(layer, columns);
      if (layer.prompts) prompt(layer);
    }
  }

 private:
  // The median of a few rounds.
  double microseconds(const std::function<void()>& work) {
    const auto begin = device_->make_event(), end = device_->make_event();
    std::vector<double> rounds;
    for (int round = 0; round <= kRounds; ++round) {
      begin->record(*stream_);
      work();
      end->record(*stream_);
      stream_->synchronize();
      if (round > 0) rounds.push_back(end->ms_since(*begin) * 1e3);
    }
    std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
    return rounds[kRounds / 2];
  }

  // `layers` times [swiglu, linear] of `rows` rows, in a graph; the microseconds of one.
  double chain(const Layer& layer, int rows, PositionClass position_class, int layers) {
    const auto n = static_cast<size_t>(layer.out_features);
    const auto k = static_cast<size_t>(layer.in_features);
    const auto count = static_cast<size_t>(rows);
    const bool logits = !layer.prompts;
    const Buffer gate_up = device_->allocate(count * 2 * k * 2, "bench gate and up");
    const Buffer x = device_->allocate(count * k * 2, "bench x");
    const Buffer out = device_->allocate(count * n * (logits ? 4 : 2), "bench out");
    FillRandomArgs fill;
    fill.out = gate_up.data();
    fill.count = static_cast<int64_t>(count * 2 * k);
    device_->ops().fill_random(*stream_, fill);

    const auto enqueue = [&] {
      for (int i = 0; i < layers; ++i) {
        SwigluArgs swiglu;
        swiglu.gate_up = gate_up.data();
        swiglu.out = x.data();
        swiglu.rows = rows;
        swiglu.size = layer.in_features;
        device_->ops().swiglu(*stream_, swiglu);
        LinearArgs args;
        args.x = x.data();
        args.x_row_stride = layer.in_features;
        const size_t weights = kPoolBytes / (n * k * 2);
        args.weight = {pool_.as<uint16_t>() + static_cast<size_t>(i) % weights * n * k,
                       layer.out_features, layer.in_features};
        args.out = out.data();
        args.out_row_stride = layer.out_features;
        args.rows = rows;
        args.position_class = position_class;
        args.f32_out = logits;
        device_->ops().linear(*stream_, args);
      }
    };
    const auto graph = device_->capture(*stream_, enqueue);
    return microseconds([&] { graph->launch(*stream_); }) / layers;
  }

  void generated(const Layer& layer, int columns) {
    const double bytes = 2.0 * layer.out_features * layer.in_features;
    const double us = chain(layer, columns, PositionClass::generated, layer.prompts ? kLayers : 4);
    if (columns == 1) one_column_us_ = us;
    std::printf("%6d x %-5d  %2d columns %9.2f us  %.3f TB/s  %5.1f %% of copy  %.2f of 1 column\n",
                layer.out_features, layer.in_features, columns, us, bytes / us / 1e6,
                100 * bytes / us / 1e6 / copy_rate_, us / one_column_us_);
  }

  void prompt(const Layer& layer) {
    const WarmUpShape shape = {layer.out_features, layer.in_features};
    device_->ops().warm_up(*stream_, &shape, 1);
    const double us = chain(layer, kPromptRows, PositionClass::prompt, 8);
    std::printf("%6d x %-5d  %d rows %9.2f us  %.0f TFLOP/s\n", layer.out_features,
                layer.in_features, kPromptRows, us,
                2.0 * kPromptRows * layer.out_features * layer.in_features / us / 1e6);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Buffer pool_;
  double copy_rate_ = 0;      // TB/s
  double one_column_us_ = 0;  // of the layer at hand
};

}  // namespace
}  // namespace convoy

int main(int argc, char** argv) {
  try {
    convoy::Bench(argc > 1 ? argv[1] : "cuda:0").run();
    return 0;
  } catch (const convoy::FatalError& error) {
    std::fprintf(stderr, "convoy_cuda_linear_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
