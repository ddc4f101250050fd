// How fast attention is at the shape of a 27B model (24 query heads, 4 KV heads of 256 values).
//
//   convoy_cuda_attention_bench [bf16|int8|fp8 …]     how keys and values are stored (default: all)
//
// Prompt class: TFLOP/s of the causal products (4 heads dim per query and key it may read).
// Generated class: microseconds of one layer's attention_inputs and paged_attention, replayed from
// a graph over so many layers that their keys and values do not stay in the cache, and bytes of
// keys and values a second.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/ops/op_set.h"
#include "kernels/ops/scratch.h"

namespace convoy {
namespace {

constexpr int kHeads = 24;
constexpr int kKvHeads = 4;
constexpr int kDim = 256;
constexpr ptrdiff_t kRow = ptrdiff_t{2 * kHeads + 2 * kKvHeads} * kDim;
constexpr int kRounds = 7;

template <typename T>
Buffer upload(Device& device, Stream& stream, const std::vector<T>& values) {
  Buffer buffer = device.allocate(values.size() * sizeof(T), "bench");
  stream.copy(buffer.data(), values.data(), values.size() * sizeof(T));
  stream.synchronize();
  return buffer;
}

// Random bf16 values in -1..1, no byte of which is NaN as e4m3.
Buffer random_values(Device& device, Stream& stream, size_t count) {
  std::vector<uint16_t> block(size_t{1} << 20);
  uint32_t state = 1;
  for (uint16_t& value : block) {
    state = state * 1664525 + 1013904223;
    value = static_cast<uint16_t>((state >> 31 << 15) | (0x3E00 + (state >> 16 & 0x17E)));
  }
  Buffer buffer = device.allocate(count * 2, "bench");
  for (size_t at = 0; at < count; at += block.size()) {
    stream.copy(buffer.as<uint16_t>() + at, block.data(),
                std::min(block.size(), count - at) * sizeof(uint16_t));
  }
  stream.synchronize();
  return buffer;
}

// Milliseconds of `work` as a graph: the median of a few launches.
double graph_ms(Device& device, Stream& stream, const std::function<void()>& work) {
  const auto graph = device.capture(stream, work);
  const auto start = device.make_event();
  const auto end = device.make_event();
  graph->launch(stream);
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    start->record(stream);
    graph->launch(stream);
    end->record(stream);
    stream.synchronize();
    times.push_back(end->ms_since(*start));
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

// One layer after another, `layers` of them, whose pages lie in two large planes.
struct Bench {
  Bench(Device& d, Stream& s, KvDtype kv_dtype, int lanes, int width, int context, int layer_count,
        int row_tokens)
      : device(d),
        stream(s),
        dtype(kv_dtype),
        page_bytes(kKvHeads * kv_block_bytes(kv_dtype, kDim)),
        layers(layer_count) {
    const int pages_per_row = row_tokens / kPageTokens;
    const int used = (context + width + kPageTokens - 1) / kPageTokens;
    layer_pages = lanes * used;
    std::vector<int32_t> table(static_cast<size_t>(lanes * pages_per_row), 0);
    for (int i = 0; i < layer_pages; ++i) {
      // Scattered, each page once.
      table[static_cast<size_t>(i / used * pages_per_row + i % used)] =
          static_cast<int32_t>(i % used * lanes + i / used);
    }
    std::vector<ControlRow> rows;
    for (int c = 0; c < lanes * width; ++c) {
      const int position = context + c % width;
      rows.push_back({position, {position, position, position}, c / width, width, -1, -1});
    }
    // Read as int8, e4m3 or scales they are numbers, too.
    const auto values = static_cast<size_t>(layers * layer_pages) * page_bytes / 2;
    control = upload(device, stream, rows);
    tables = upload(device, stream, table);
    k = random_values(device, stream, values);
    v = random_values(device, stream, values);
    qkv = random_values(device, stream, rows.size() * static_cast<size_t>(kRow));
    norm = upload(device, stream, std::vector<float>(kDim, 0.1F));
    inv_freq = upload(device, stream, std::vector<float>(32, 0.01F));
    axis = upload(device, stream, std::vector<int32_t>(32, 0));
    out = device.allocate(rows.size() * kHeads * kDim * 2, "bench");
    const AttentionScratchShape shape{kHeads, kDim, row_tokens};
    scratch = device.allocate(
        attention_scratch_bytes(DeviceKind::cuda, shape, static_cast<int>(rows.size())), "bench");
    view = {control.as<ControlRow>(), lanes, width, PositionClass::prompt};
    pages_of_row = pages_per_row;
  }

  KvPlanes planes(int layer) const {
    const size_t at = static_cast<size_t>(layer % layers * layer_pages) * page_bytes;
    return {k.as<std::byte>() + at,
            v.as<std::byte>() + at,
            tables.as<int32_t>(),
            pages_of_row,
            kKvHeads,
            kDim,
            dtype};
  }

  void inputs(int layer, PositionClass position_class) {
    AttentionInputsArgs args;
    args.step = view;
    args.step.position_class = position_class;
    args.qkv = qkv.data();
    args.column_stride = kRow;
    args.heads = kHeads;
    args.q_norm = args.k_norm = norm.as<float>();
    args.rotary_dim = 64;
    args.inv_freq = inv_freq.as<float>();
    args.axis = axis.as<int32_t>();
    args.cache = planes(layer);
    device.ops().attention_inputs(stream, args);
  }

  void attend(int layer, PositionClass position_class) {
    PagedAttentionArgs args;
    args.step = view;
    args.step.position_class = position_class;
    args.q = qkv.data();
    args.gate = activations_at(qkv.data(), kDim, 2);
    args.q_column_stride = args.gate_column_stride = kRow;
    args.q_head_stride = args.gate_head_stride = ptrdiff_t{2} * kDim;
    args.heads = kHeads;
    args.cache = planes(layer);
    args.out = out.data();
    args.scratch = scratch.data();
    device.ops().paged_attention(stream, args);
  }

  Device& device;
  Stream& stream;
  KvDtype dtype;
  size_t page_bytes;
  int layers, layer_pages, pages_of_row;
  Buffer control, tables, k, v, qkv, norm, inv_freq, axis, out, scratch;
  StepView view;
};

void bench_prompt(Device& device, Stream& stream, KvDtype dtype) {
  constexpr int kChunk = 1024;
  for (const int context : {0, 1024, 4096, 16384, 65536}) {
    const int layers = context < 16384 ? 8 : 2;
    Bench bench(device, stream, dtype, 1, kChunk, context, layers, context + kChunk);
    const double ms = graph_ms(device, stream, [&] {
      for (int layer = 0; layer < layers; ++layer) bench.attend(layer, PositionClass::prompt);
    });
    const double inputs_ms = graph_ms(device, stream, [&] {
      for (int layer = 0; layer < layers; ++layer) bench.inputs(layer, PositionClass::prompt);
    });
    const double pairs = double{kChunk} * context + double{kChunk} * (kChunk + 1) / 2;
    std::printf("%s prompt    context %6d chunk %d: %9.1f us %6.1f TFLOP/s; inputs %6.1f us\n",
                kv_dtype_name(dtype), context, kChunk, ms / layers * 1e3,
                4 * kHeads * kDim * pairs * layers / ms / 1e9, inputs_ms / layers * 1e3);
    std::fflush(stdout);
  }
}

void bench_generated(Device& device, Stream& stream, KvDtype dtype) {
  constexpr int kRowTokens = 131072;
  struct Shape {
    int lanes, width, context;
  };
  for (const Shape& shape :
       {Shape{1, 1, 63}, Shape{1, 1, 511}, Shape{1, 1, 2047}, Shape{1, 1, 8191}, Shape{1, 1, 65535},
        Shape{16, 1, 511}, Shape{16, 1, 8191}, Shape{16, 1, 65535}, Shape{1, 4, 511},
        Shape{1, 4, 8191}, Shape{1, 16, 511}, Shape{1, 16, 8191}, Shape{4, 4, 8191},
        Shape{4, 16, 8191}}) {
    const double bytes = 2.0 * shape.lanes * (shape.context + shape.width) * kKvHeads *
                         static_cast<double>(kv_token_bytes(dtype, kDim));
    const int layers = std::clamp(static_cast<int>(300e6 / bytes), 2, 64);
    Bench bench(device, stream, dtype, shape.lanes, shape.width, shape.context, layers, kRowTokens);
    const auto us = [&](bool inputs, bool attend) {
      return graph_ms(device, stream,
                      [&] {
                        for (int layer = 0; layer < layers; ++layer) {
                          if (inputs) bench.inputs(layer, PositionClass::generated);
                          if (attend) bench.attend(layer, PositionClass::generated);
                        }
                      }) /
             layers * 1e3;
    };
    const double attend = us(false, true);
    std::printf("%s generated %2d lanes of %2d at %6d: %8.2f us %5.2f TB/s; with inputs %8.2f us\n",
                kv_dtype_name(dtype), shape.lanes, shape.width, shape.context + 1, attend,
                bytes / attend / 1e6, us(true, true));
    std::fflush(stdout);
  }
}

void run(const std::set<std::string>& wanted) {
  const auto device = make_cuda_device({"cuda:0"});
  const auto stream = device->make_stream();
  for (const KvDtype dtype : {KvDtype::bf16, KvDtype::int8, KvDtype::fp8}) {
    if (!wanted.empty() && !wanted.contains(kv_dtype_name(dtype))) continue;
    bench_prompt(*device, *stream, dtype);
    bench_generated(*device, *stream, dtype);
  }
}

}  // namespace
}  // namespace convoy

int main(int count, char** words) {
  convoy::run({words + 1, words + count});
  return 0;
}
