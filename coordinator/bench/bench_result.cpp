#include "coordinator/bench/bench_result.h"

#include <algorithm>
#include <set>

namespace convoy {
namespace {

const DeviceSpeed* speed_of(const BenchResult& result, const std::string& device) {
  const auto found = std::find_if(result.devices.begin(), result.devices.end(),
                                  [&](const DeviceSpeed& d) { return d.id == device; });
  return found == result.devices.end() ? nullptr : &*found;
}

}  // namespace

std::optional<Spread> spread_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return Spread{median, values.front(), values.back()};
}

double prefill_rate(const BenchCase& c, double seconds) {
  return seconds > 0 ? c.prompt_tokens / seconds : 0;
}

double decode_rate(const BenchCase& c, double step_ms) {
  return step_ms > 0 ? 1e3 * c.lanes / step_ms : 0;
}

double step_kv_bytes(const BenchStage& stage, const BenchCase& c) {
  const double positions = c.prompt_tokens + (c.decode_tokens + 1) / 2.0;
  return c.lanes * positions * static_cast<double>(stage.position_kv_bytes);
}

std::optional<double> copy_share(const BenchResult& result, const BenchSet& set,
                                 const BenchCase& c) {
  if (!c.step_ms) return std::nullopt;
  double seconds = 0;
  for (const BenchStage& stage : set.stages) {
    const DeviceSpeed* const speed = speed_of(result, stage.device);
    if (speed == nullptr || speed->copy_bytes_per_s <= 0) return std::nullopt;
    const double bytes = static_cast<double>(stage.step_weight_bytes) + step_kv_bytes(stage, c);
    seconds += bytes / speed->copy_bytes_per_s;
  }
  return seconds / (c.step_ms->median * 1e-3);
}

std::optional<double> product_share(const BenchResult& result, const BenchSet& set,
                                    const BenchCase& c) {
  if (!c.prefill_s) return std::nullopt;
  double flops = 0;
  double rate = 0;
  std::set<std::string> counted;
  for (const BenchStage& stage : set.stages) {
    flops += stage.prefill_flops * c.prompt_tokens;
    if (!counted.insert(stage.device).second) continue;
    const DeviceSpeed* const speed = speed_of(result, stage.device);
    if (speed == nullptr || speed->product_flop_per_s <= 0) return std::nullopt;
    rate += speed->product_flop_per_s;
  }
  return flops / c.prefill_s->median / rate;
}

}  // namespace convoy
