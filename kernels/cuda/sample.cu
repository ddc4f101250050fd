// Draws tokens as kernels/draw/token_draw.h does, with the same bits, a block per row.
//
// What a rule keeps is a prefix of the order (larger logit first, the lower id first among equals),
// so a filter is one place in it: the last token kept. Logits fall into buckets by their distance
// from the largest; the bucket in which the measure of a filter (a number of tokens, or their mass)
// reaches its limit holds that place. Tokens from there up are few as a rule: they go to a list in
// shared memory, where every token sums the measure of those before it. Only a bucket that the list
// cannot hold is searched by bisection, a pass over the row for every bit of a place.
//
// A pass over 248,320 logits takes a block about 9 us; top-k, with top-p or without, takes two.
#include <climits>

#include "base/check.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/gumbel.h"

namespace convoy {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBuckets = 2 * kThreads;
constexpr float kBucketsPerLogit = 64.0F;  // the last one takes all that is further away
constexpr int kListed = kBuckets;
constexpr int kBatch = 4;  // loads of a thread that are under way together
constexpr float kInfinity = INFINITY;

// A place in the order: 32 bits of value, larger first, then 32 of id. No token is behind kEnd.
using Place = unsigned long long;
constexpr Place kEnd = ~0ULL;
using Sum = unsigned long long;

__device__ __forceinline__ Place place_of(float value, int32_t id) {
  const uint32_t bits = __float_as_uint(value + 0.0F);  // -0 + 0 is 0
  const uint32_t descending = bits ^ ((bits >> 31) != 0 ? 0U : 0x7FFFFFFFU);
  return static_cast<Place>(descending) << 32 | static_cast<uint32_t>(id);
}

struct Shared {
  Sum sums[kBuckets];  // by bucket; by entry of the list once there is one
  float values[kListed];
  int32_t ids[kListed];
  Sum of_warps[kWarps];
  float scores[kWarps];
  int32_t winners[kWarps];
  int listed;
  int bucket;  // that a filter ends in; -1: in none
  Sum before;  // the measure of the buckets before it
  Place last;
};

// What every thread of a block knows of its row.
struct Row {
  const float* logits;
  int valid;
  float largest;
  float temperature;
  bool in_list;  // the list holds every token up to `last`
  Place last;    // kept is what is not behind it
};

__device__ __forceinline__ float scaled(const Row& row, float value) {
  return draw::scaled_logit(value, row.largest, row.temperature);
}
__device__ __forceinline__ int bucket_of(const Row& row, float value) {
  const float distance = value == row.largest ? 0.0F : row.largest - value;
  return static_cast<int>(fminf(distance * kBucketsPerLogit, kBuckets - 1));
}

// Calls visit(value, id) for the row's tokens that are not masked, those of the list where it has
// them, each on one thread.
template <typename Visit>
__device__ __forceinline__ void visit_tokens(const Row& row, const Shared& shared, Visit visit) {
  const int thread = static_cast<int>(threadIdx.x);
  if (row.in_list) {
    for (int i = thread; i < shared.listed; i += kThreads) visit(shared.values[i], shared.ids[i]);
    return;
  }
  for (int begin = thread; begin < row.valid; begin += kBatch * kThreads) {
    float values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int id = begin + i * kThreads;
      values[i] = id < row.valid ? row.logits[id] : -kInfinity;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (values[i] > -kInfinity) visit(values[i], begin + i * kThreads);
    }
  }
}

// The sum over the block, on every thread.
__device__ Sum block_sum(Sum mine, Shared& shared) {
  for (int distance = 16; distance > 0; distance /= 2)
    mine += __shfl_xor_sync(0xFFFFFFFFU, mine, distance);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) shared.of_warps[threadIdx.x / 32] = mine;
  __syncthreads();
  Sum sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += shared.of_warps[i];
  return sum;
}

// The measures of filters: what a token counts, and when the limit is reached.
struct Number {
  Sum limit;
  __device__ Sum of(const Row&, float) const { return 1; }
  __device__ bool reached(Sum sum) const { return sum >= limit; }
};
struct Mass {
  double limit;
  __device__ Sum of(const Row& row, float value) const {
    return draw::weight_mass(draw::exp_weight(scaled(row, value)));
  }
  __device__ bool reached(Sum sum) const { return static_cast<double>(sum) >= limit; }
};

// 64-bit sums of two 32-bit ones, which shared memory adds natively; whoever wraps the low one
// carries.
__device__ __forceinline__ void add_to(Sum& sum, Sum value) {
  auto* const words = reinterpret_cast<uint32_t*>(&sum);
  const auto low = static_cast<uint32_t>(value);
  const uint32_t carry = atomicAdd(&words[0], low) > ~low ? 1 : 0;
  const uint32_t high = static_cast<uint32_t>(value >> 32) + carry;
  if (high != 0) atomicAdd(&words[1], high);
}

// Sums the measure per bucket of what is kept so far.
template <typename Measure>
__device__ void fill_buckets(const Row& row, Shared& shared, Measure measure) {
  for (int i = static_cast<int>(threadIdx.x); i < kBuckets; i += kThreads) shared.sums[i] = 0;
  __syncthreads();
  Sum far = 0;  // most of a vocabulary is there: summed without contention
  visit_tokens(row, shared, [&](float value, int32_t id) {
    if (place_of(value, id) > row.last) return;
    const int bucket = bucket_of(row, value);
    const Sum sum = measure.of(row, value);
    if (bucket == kBuckets - 1) {
      far += sum;
    } else if (sum != 0) {
      add_to(shared.sums[bucket], sum);
    }
  });
  far = block_sum(far, shared);
  if (threadIdx.x == 0) shared.sums[kBuckets - 1] = far;
  __syncthreads();
}

// Finds the bucket in which the measure is reached, and what is before it.
template <typename Measure>
__device__ void find_bucket(Shared& shared, Measure measure) {
  const int thread = static_cast<int>(threadIdx.x);
  const Sum first = shared.sums[2 * thread];
  const Sum second = shared.sums[2 * thread + 1];
  Sum through = first + second;  // becomes the sum up to this thread's buckets
  for (int distance = 1; distance < 32; distance *= 2) {
    const Sum other = __shfl_up_sync(0xFFFFFFFFU, through, distance);
    if (thread % 32 >= distance) through += other;
  }
  if (thread % 32 == 31) shared.of_warps[thread / 32] = through;
  if (thread == 0) shared.bucket = -1;
  __syncthreads();
  for (int i = 0; i < thread / 32; ++i) through += shared.of_warps[i];
  const Sum before = through - first - second;
  if (!measure.reached(before) && measure.reached(through)) {
    const bool at_first = measure.reached(before + first);
    shared.bucket = 2 * thread + (at_first ? 0 : 1);
    shared.before = before + (at_first ? 0 : first);
  }
  __syncthreads();
}

// Lists what is kept from bucket `from` to bucket `to`; false: it is more than the list holds.
__device__ bool fill_list(const Row& row, Shared& shared, int from, int to) {
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
  visit_tokens(row, shared, [&](float value, int32_t id) {
    const int bucket = bucket_of(row, value);
    if (bucket < from || bucket > to || place_of(value, id) > row.last) return;
    const int at = atomicAdd(&shared.listed, 1);
    if (at >= kListed) return;
    shared.values[at] = value;
    shared.ids[at] = id;
  });
  __syncthreads();
  const bool fits = shared.listed <= kListed;
  __syncthreads();  // before it is counted again
  return fits;
}

// The place in the list where the measure, `before` to begin with, is reached.
template <typename Measure>
__device__ void find_in_list(const Row& row, Shared& shared, Measure measure, Sum before) {
  const int thread = static_cast<int>(threadIdx.x);
  const int count = shared.listed;
  for (int i = thread; i < count; i += kThreads) shared.sums[i] = measure.of(row, shared.values[i]);
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) {
    const Place mine = place_of(shared.values[i], shared.ids[i]);
    if (mine > row.last) continue;
    Sum sum = before;
    for (int j = 0; j < count; ++j)
      sum += place_of(shared.values[j], shared.ids[j]) < mine ? shared.sums[j] : 0;
    if (!measure.reached(sum) && measure.reached(sum + shared.sums[i])) shared.last = mine;
  }
  __syncthreads();
}

// The same over the bucket's tokens in the row: the least place that reaches the measure.
template <typename Measure>
__device__ void find_by_bisection(const Row& row, Shared& shared, Measure measure) {
  const int bucket = shared.bucket;
  const Sum before = shared.before;
  Place low = 0;
  Place high = row.last;
  while (low < high) {
    const Place middle = low + (high - low) / 2;
    Sum sum = 0;
    visit_tokens(row, shared, [&](float value, int32_t id) {
      if (bucket_of(row, value) == bucket && place_of(value, id) <= middle)
        sum += measure.of(row, value);
    });
    if (measure.reached(before + block_sum(sum, shared))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (threadIdx.x == 0) shared.last = low;
  __syncthreads();
}

// Cuts what is kept behind the token that reaches the measure, if one does.
template <typename Measure>
__device__ void cut(Row& row, Shared& shared, Measure measure) {
  if (threadIdx.x == 0) shared.last = row.last;
  if (row.in_list) {
    find_in_list(row, shared, measure, 0);
  } else {
    fill_buckets(row, shared, measure);
    find_bucket(shared, measure);
    if (shared.bucket < 0) return;
    const int bucket = shared.bucket;
    const Sum before = shared.before;
    if (fill_list(row, shared, 0, bucket)) {
      row.in_list = true;
      find_in_list(row, shared, measure, 0);
    } else if (fill_list(row, shared, bucket, bucket)) {
      find_in_list(row, shared, measure, before);
    } else {
      find_by_bisection(row, shared, measure);
    }
  }
  row.last = shared.last;
  __syncthreads();  // before it is written again
}

// The kept token with the best noisy score, the lowest id among equals.
__device__ int32_t winner_of(const Row& row, Shared& shared, const DrawRule& rule, int32_t best) {
  const auto noise = [&](int32_t id) {
    return draw::gumbel_noise(rule.seed, rule.token_index, id);
  };
  float score = draw::add(0.0F, noise(best));
  int32_t winner = best;
  // With the largest noise there is, a token must reach the score of the best one; 0.1 to spare
  // against the rounding of scores.
  const double reach = static_cast<double>(score) - draw::kLargestNoise - 0.1;
  const auto cutoff = static_cast<float>(
      fmax(static_cast<double>(row.largest) + reach * static_cast<double>(row.temperature),
           -static_cast<double>(__FLT_MAX__)));
  const auto challenge = [&](float other, int32_t id) {
    if (other > score || (other == score && id < winner)) {
      score = other;
      winner = id;
    }
  };
  visit_tokens(row, shared, [&](float value, int32_t id) {
    if (value < cutoff || place_of(value, id) > row.last) return;
    const float x = scaled(row, value);
    if (rule.min_p > 0.0F && draw::exp_weight(x) < rule.min_p) return;
    challenge(draw::add(x, noise(id)), id);
  });
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFU, score, distance);
    challenge(other, __shfl_xor_sync(0xFFFFFFFFU, winner, distance));
  }
  if (threadIdx.x % 32 == 0) {
    shared.scores[threadIdx.x / 32] = score;
    shared.winners[threadIdx.x / 32] = winner;
  }
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) challenge(shared.scores[i], shared.winners[i]);
  return winner;
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, ptrdiff_t row_stride, int valid, const DrawRule* rules,
                  int32_t* ids, int32_t* drawn) {
  __shared__ Shared shared;
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const DrawRule rule = rules[blockIdx.x];
  const int32_t best = ids[blockIdx.x];
  Row row = {.logits = logits + static_cast<ptrdiff_t>(blockIdx.x) * row_stride,
             .valid = valid,
             .largest = 0.0F,
             .temperature = rule.temperature,
             .in_list = false,
             .last = kEnd};
  row.largest = row.logits[best];
  const bool masked = !(row.largest > -kInfinity);
  if (rule.greedy() || masked) {
    if (threadIdx.x == 0) drawn[blockIdx.x] = rule.greedy() ? best : -1;
    return;
  }
  if (rule.top_k > 0) cut(row, shared, Number{static_cast<Sum>(rule.top_k)});
  if (rule.top_p < 1.0) {
    Sum mine = 0;
    visit_tokens(row, shared, [&](float value, int32_t id) {
      if (place_of(value, id) <= row.last) mine += Mass{}.of(row, value);
    });
    const double limit = rule.top_p * static_cast<double>(block_sum(mine, shared));
    if (limit > 0) {
      cut(row, shared, Mass{limit});
    } else {
      row.last = place_of(row.largest, best);
    }
  }
  const int32_t winner = winner_of(row, shared, rule, best);
  if (threadIdx.x > 0) return;
  ids[blockIdx.x] = winner;
  drawn[blockIdx.x] = winner;
}

}  // namespace

void CudaOpSet::sample(Stream& stream, const SampleArgs& args) {
  CONVOY_CHECK_OP(args.valid, >, 0);
  CONVOY_CHECK_OP(args.row_stride, >=, args.valid);
  if (args.rows == 0) return;
  cuda::launch(sample_kernel,
               {.grid = dim3(static_cast<unsigned>(args.rows)), .block = dim3(kThreads)},
               handle_of(stream), args.logits, args.row_stride, args.valid, args.rules, args.ids,
               args.drawn);
}

}  // namespace convoy
