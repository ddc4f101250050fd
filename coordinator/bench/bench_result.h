// What convoy bench measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "shared/control/gpu_sensor.h"

namespace convoy {

/// The middle and the ends of a few measurements of one thing.
struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
  /// (most - least) / median; 0 for nothing.
  double relative() const { return median > 0 ? (most - least) / median : 0; }
};
/// Nothing for no values.
std::optional<Spread> spread_of(std::vector<double> values);

/// One stage of a device set.
struct BenchStage {
  int rank = 0;
  std::string device;
  LayerRange layers;
  uint64_t step_weight_bytes = 0;  ///< weights that one decode step reads: all but the embedding
  double prefill_flops = 0;        ///< of the matrix products, per prompt token
  uint64_t position_kv_bytes =
      0;  ///< keys and values of one position, which every later step reads
};

/// One prompt length with one decode length and number of lanes.
struct BenchCase {
  int lanes = 1;  ///< sequences that decode at the same time
  int prompt_tokens = 0;
  int decode_tokens = 0;            ///< of each lane
  std::optional<Spread> prefill_s;  ///< of one prompt
  std::optional<Spread> step_ms;    ///< of one decode step, a token of every lane
  std::optional<double> hop_us;     ///< from stage to stage: what no stage computed for
  std::vector<ClockRange> clocks;   ///< of the set's GPUs, while it ran; empty: not known
};

struct BenchSet {
  std::string devices;   ///< as given; of "auto" those that were taken
  std::string kv_dtype;  ///< as --kv-dtype names it
  double load_s = 0;
  std::vector<BenchStage> stages;
  std::vector<BenchCase> cases;
  std::vector<ClockRange> waiting_clocks;  ///< loaded, no step in flight
};

/// What a device does at best, measured with the same operations.
struct DeviceSpeed {
  std::string id;
  std::string name;
  std::string architecture;
  double copy_bytes_per_s = 0;  ///< device to device, bytes read plus bytes written
  double product_flop_per_s = 0;
};

struct BenchResult {
  std::string model;
  bool dummy = false;
  int prefill_chunk_tokens = 0;
  int warm_up = 0;
  int repetitions = 0;
  bool sampled = false;
  std::vector<BenchSet> sets;
  std::vector<DeviceSpeed> devices;  ///< every device of the sets, once
};

/// Tokens per second, over all lanes in decode.
double prefill_rate(const BenchCase& c, double seconds);
double decode_rate(const BenchCase& c, double step_ms);

/// Keys and values that a stage reads in one decode step of all lanes: the mean over the case's
/// steps, whose context grows from the prompt on.
double step_kv_bytes(const BenchStage& stage, const BenchCase& c);

/// How much of what the devices can do a decode step uses: the time that reading every stage's
/// weights, keys and values at its device's copy rate would take, over the step's. Nothing when a
/// rate is not known.
std::optional<double> copy_share(const BenchResult& result, const BenchSet& set,
                                 const BenchCase& c);
/// The rate of a prompt's matrix products over the sum of the rates of the set's devices (stages of
/// a long prompt work at the same time).
std::optional<double> product_share(const BenchResult& result, const BenchSet& set,
                                    const BenchCase& c);

}  // namespace convoy
