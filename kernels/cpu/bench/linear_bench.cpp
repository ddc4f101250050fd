// How close the linear layer comes to the machine: bytes of weights a second at one row against a
// plain read of the same memory, and multiply-adds a second at many rows. Medians of interleaved
// rounds, so that other load hits both alike.
//
//   convoy_linear_bench [threads] [instruction set]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/op_set.h"

namespace convoy {
namespace {

constexpr int kRounds = 9;

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Sums 64-bit words, vectorised by the compiler: what reading costs with nothing else to do.
uint64_t read_all(ThreadPool& pool, const void* data, size_t bytes) {
  std::vector<uint64_t> sums(static_cast<size_t>(pool.threads()) * 8);
  const auto* words = static_cast<const uint64_t*>(data);
  pool.parallel_for(static_cast<int64_t>(bytes / 4096), 1024,
                    [&](int64_t begin, int64_t end, int worker) {
                      uint64_t sum[8] = {};
                      for (int64_t i = begin * 512; i < end * 512; i += 8) {
                        for (int lane = 0; lane < 8; ++lane) sum[lane] += words[i + lane];
                      }
                      for (const uint64_t part : sum) sums[static_cast<size_t>(worker) * 8] += part;
                    });
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

struct Layer {
  int out_features;
  int in_features;
};

void bench_layer(CpuDevice& device, Stream& stream, const Layer& layer,
                 const std::vector<int>& rows) {
  OpSet& ops = device.ops();
  const size_t bytes = ops.packed_linear_bytes(layer.out_features, layer.in_features);
  const Buffer weight = device.allocate(bytes, "bench weight");
  // 1.0 in every place: the time does not depend on the values, but denormals would be slow.
  std::fill_n(weight.as<uint16_t>(), bytes / 2, uint16_t{0x3F80});
  for (const int count : rows) {
    const auto x_size = static_cast<size_t>(count) * static_cast<size_t>(layer.in_features);
    const auto out_size = static_cast<size_t>(count) * static_cast<size_t>(layer.out_features);
    const Buffer x = device.allocate(x_size * 4, "bench x");
    const Buffer out = device.allocate(out_size * 4, "bench out");
    std::fill_n(x.as<float>(), x_size, 0.5F);
    LinearArgs args;
    args.x = x.as<float>();
    args.x_row_stride = layer.in_features;
    args.weight = {weight.as<uint16_t>(), layer.out_features, layer.in_features};
    args.out = out.as<float>();
    args.out_row_stride = layer.out_features;
    args.rows = count;
    std::vector<double> read, linear;
    uint64_t sink = 0;
    for (int round = 0; round < (count > 64 ? 3 : kRounds); ++round) {
      read.push_back(seconds_of([&] { sink += read_all(device.pool(), weight.data(), bytes); }));
      linear.push_back(seconds_of([&] { ops.linear(stream, args); }));
    }
    const double flops = 2.0 * count * layer.out_features * layer.in_features;
    std::printf(
        "%7d x %-6d %7.1f MB  M=%-4d read %6.1f GB/s  linear %6.1f GB/s  %7.1f GFLOP/s  %9.3f ms  "
        "read/linear %.2f%s\n",
        layer.out_features, layer.in_features, static_cast<double>(bytes) / 1e6, count,
        static_cast<double>(bytes) / median(read) / 1e9,
        static_cast<double>(bytes) / median(linear) / 1e9, flops / median(linear) / 1e9,
        median(linear) * 1e3, median(linear) / median(read), sink == 0 ? " " : "");
  }
}

int run(int argc, char** argv) {
  CpuDeviceOptions options;
  if (argc > 1) options.threads = std::atoi(argv[1]);
  if (argc > 2) options.instruction_set = argv[2];
  CpuDevice device(options);
  const auto stream = device.make_stream();
  std::printf("%s, %s, %d threads\n", device.info().name.c_str(),
              device.info().architecture.c_str(), device.info().threads);
  bench_layer(device, *stream, {151936, 1024}, {1, 2, 4, 8, 64});
  bench_layer(device, *stream, {3072, 1024}, {1, 8, 64, 512});
  bench_layer(device, *stream, {5120, 17408}, {1, 8, 64, 512});
  return 0;
}

}  // namespace
}  // namespace convoy

int main(int argc, char** argv) {
  try {
    return convoy::run(argc, argv);
  } catch (const convoy::FatalError& error) {
    std::fprintf(stderr, "convoy_linear_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
