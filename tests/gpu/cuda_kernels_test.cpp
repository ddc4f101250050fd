// Runs the operations' test bodies on the first CUDA device.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/gpu/first_device.h"
#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"

namespace convoy::test {
namespace {

class CudaKernelTest : public GpuTest, public testing::WithParamInterface<KernelCase> {};

TEST_P(CudaKernelTest, Holds) {
  GetParam().run(device());
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaKernelTest, testing::ValuesIn(all_kernel_cases()),
                         [](const auto& kernel) { return std::string(kernel.param.name); });

class CudaKernels : public GpuTest {};

TEST_F(CudaKernels, TheSameInputsGiveTheSameBitsAgain) {
  const std::vector<NamedResult> want = all_results(device());
  for (int again = 0; again < 3; ++again) {
    const std::vector<NamedResult> got = all_results(device());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      expect_same_bits(got[i].values, want[i].values, got[i].name);
  }
}

// A residual block's inputs and outputs: two operations, one after the other's result.
struct NormAndLinear {
  static constexpr int kRows = 3;
  static constexpr int kHidden = 512;
  static constexpr int kOut = 256;

  explicit NormAndLinear(Device& device, Random& random)
      : x(device, random.floats(size_t{kRows} * kHidden, -2.0F, 2.0F)),
        weight(device, random.floats(kHidden, -0.5F, 0.5F)),
        normed(output_activations(device, size_t{kRows} * kHidden)),
        matrix(device, random.bf16s(size_t{kOut} * kHidden, 0.1F)),
        out(output_activations(device, size_t{kRows} * kOut)) {}

  void enqueue(Device& device, Stream& stream) {
    RmsNormArgs norm;
    norm.x = x.data();
    norm.out = normed.data();
    norm.weight = weight.data();
    norm.rows = kRows;
    norm.size = kHidden;
    norm.x_row_stride = norm.out_row_stride = kHidden;
    device.ops().rms_norm(stream, norm);
    LinearArgs linear;
    linear.x = normed.data();
    linear.weight = {matrix.data(), kOut, kHidden};
    linear.out = out.data();
    linear.rows = kRows;
    linear.x_row_stride = kHidden;
    linear.out_row_stride = kOut;
    linear.position_class = PositionClass::generated;
    device.ops().linear(stream, linear);
  }

  ActivationArray x;
  DeviceArray<float> weight;
  ActivationArray normed;
  DeviceArray<uint16_t> matrix;
  ActivationArray out;
};

TEST_F(CudaKernels, AGraphGivesTheBitsOfItsEagerRun) {
  Random random(11);
  NormAndLinear work(device(), random);
  const auto stream = device().make_stream();
  work.enqueue(device(), *stream);
  stream->synchronize();
  const std::vector<float> want = work.out.read();
  const auto graph = device().capture(*stream, [&] { work.enqueue(device(), *stream); });
  for (int replay = 0; replay < 3; ++replay) {
    stream->fill_zero(work.out.data(), want.size() * device().ops().activation_bytes());
    graph->launch(*stream);
    stream->synchronize();
    expect_same_bits(work.out.read(), want, "replay " + std::to_string(replay));
  }
}

}  // namespace
}  // namespace convoy::test
