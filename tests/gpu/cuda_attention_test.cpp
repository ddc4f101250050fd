// The prompt-class kernel that every card has, where the card would take another one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_stream.h"
#include "tests/gpu/first_device.h"
#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kv_codec.h"

namespace convoy::test {
namespace {

class CudaAttention : public GpuTest, public testing::WithParamInterface<KvDtype> {};
INSTANTIATE_TEST_SUITE_P(KvDtypes, CudaAttention,
                         testing::Values(KvDtype::bf16, KvDtype::int8, KvDtype::fp8),
                         [](const auto& dtype) { return std::string(kv_dtype_name(dtype.param)); });

// Every slot of every page filled with numbers of -limit..limit.
std::vector<uint8_t> filled_plane(KvDtype dtype, int pages, int kv_heads, int head_dim, float limit,
                                  Random& random) {
  KvPlaneImage plane(dtype, pages, kv_heads, head_dim);
  for (int page = 0; page < pages; ++page) {
    for (int head = 0; head < kv_heads; ++head) {
      for (int slot = 0; slot < kPageTokens; ++slot) {
        plane.store(page, head, slot,
                    random.floats(static_cast<size_t>(head_dim), -limit, limit).data());
      }
    }
  }
  return plane.bytes();
}

// A chunk in the middle of a prompt, some of its columns dead.
std::vector<float> run_chunk(Device& device, KvDtype dtype, int head_dim, bool hopper) {
  constexpr int kHeads = 6, kKvHeads = 2, kWidth = 150, kLive = 131, kFirst = 192, kPages = 6;
  Random random(static_cast<uint32_t>(head_dim));
  std::vector<ControlRow> rows;
  for (int c = 0; c < kWidth; ++c) rows.push_back({kFirst + c, {0, 0, 0}, 0, kLive, -1, -1});
  const auto row = static_cast<size_t>(kHeads * head_dim);
  const DeviceArray<ControlRow> control(device, rows);
  const DeviceArray<int32_t> tables(device, {4, 1, 5, 0, 3, 2});
  const DeviceArray<uint8_t> k(device, filled_plane(dtype, kPages, kKvHeads, head_dim, 2, random)),
      v(device, filled_plane(dtype, kPages, kKvHeads, head_dim, 1, random));
  const ActivationArray q(device, random.floats(kWidth * 2 * row, -2, 2)),
      out = output_activations(device, kWidth * row);
  PagedAttentionArgs args;
  args.step = {control.data(), 1, kWidth, PositionClass::prompt};
  args.q = q.data();
  args.gate = activations_at(q.data(), head_dim, 2);
  args.q_column_stride = args.gate_column_stride = static_cast<ptrdiff_t>(2 * row);
  args.q_head_stride = args.gate_head_stride = ptrdiff_t{2} * head_dim;
  args.heads = kHeads;
  args.cache = {k.data(), v.data(), tables.data(), kPages, kKvHeads, head_dim, dtype};
  args.out = out.data();
  const auto stream = device.make_stream();
  const auto attend = hopper ? cuda::attend_prompt_hopper : cuda::attend_prompt;
  attend(handle_of(*stream), args);
  stream->synchronize();
  return out.read();
}

TEST_P(CudaAttention, TheKernelOfEveryCardAgreesWithThatOfThisOne) {
  for (const int head_dim : {128, 256}) {
    PagedAttentionArgs args;
    args.cache.head_dim = head_dim;
    if (!cuda::has_hopper_attention(args)) GTEST_SKIP() << "this card takes no other kernel";
    const std::vector<float> got = run_chunk(device(), GetParam(), head_dim, false);
    const std::vector<float> want = run_chunk(device(), GetParam(), head_dim, true);
    // Both round weights and results to bf16, from sums in different orders.
    expect_close(got, {want.begin(), want.end()}, 0x1p-7, 0.1,
                 "head_dim " + std::to_string(head_dim));
  }
}

}  // namespace
}  // namespace convoy::test
