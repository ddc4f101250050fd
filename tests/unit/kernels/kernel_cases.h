// The test bodies of the operations, for any device. A test program runs each of them on its
// devices.
#pragma once

#include <ostream>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

namespace convoy::test {

struct KernelCase {
  const char* name;
  void (*run)(Device& device);
};
inline void PrintTo(const KernelCase& kernel_case, std::ostream* out) {
  *out << kernel_case.name;
}

std::span<const KernelCase> linear_cases();
std::span<const KernelCase> norm_cases();
std::span<const KernelCase> elementwise_cases();
std::span<const KernelCase> attention_inputs_cases();
std::span<const KernelCase> kv_write_cases();
std::span<const KernelCase> attention_cases();
std::span<const KernelCase> conv_cases();
std::span<const KernelCase> gdn_cases();
std::span<const KernelCase> gdn_generate_cases();
std::span<const KernelCase> sample_cases();

inline std::vector<KernelCase> all_kernel_cases() {
  std::vector<KernelCase> all;
  for (const auto& part : {linear_cases(), norm_cases(), elementwise_cases(),
                           attention_inputs_cases(), kv_write_cases(), attention_cases(),
                           conv_cases(), gdn_cases(), gdn_generate_cases(), sample_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// What every operation computes from fixed inputs, a vector per operation: for comparing two
/// devices bit by bit.
struct NamedResult {
  const char* name;
  std::vector<float> values;
};
std::vector<NamedResult> linear_results(Device& device);
std::vector<NamedResult> norm_results(Device& device);
std::vector<NamedResult> elementwise_results(Device& device);
std::vector<NamedResult> attention_inputs_results(Device& device);
std::vector<NamedResult> attention_results(Device& device);
std::vector<NamedResult> conv_results(Device& device);
std::vector<NamedResult> gdn_results(Device& device);

inline std::vector<NamedResult> all_results(Device& device) {
  std::vector<NamedResult> all;
  for (auto* part : {linear_results, norm_results, elementwise_results, attention_inputs_results,
                     attention_results, conv_results, gdn_results}) {
    for (NamedResult& result : part(device)) all.push_back(std::move(result));
  }
  return all;
}

}  // namespace convoy::test
