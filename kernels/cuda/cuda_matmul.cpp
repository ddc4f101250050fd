#include "kernels/cuda/cuda_matmul.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>

#include "base/check.h"
#include "base/exit_code.h"
#include "kernels/cuda/cublas_lt_calls.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_scope.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/device/stalling_calls.h"

namespace convoy {
namespace {

constexpr int kReferenceRows = 1024;
constexpr int kCandidates = 16;
constexpr int kRowMultiple = 128;  // rows are rounded up to it where memory allows
constexpr uint32_t kAlignment = 16;
// The trial computes all rows at once, at least kTrialRows, and parts of them alone.
constexpr int kTrialRows = 1000;
struct RowRange {
  int first, count;
};
constexpr RowRange kTrialParts[] = {{0, 1}, {999, 1}, {0, 64}, {500, 64}, {872, 128}, {100, 384}};

bool aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kAlignment == 0;
}

size_t rounded_up(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// What a product of this many rows computes where memory allows.
int padded_rows(int rows) {
  return (rows + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

// Other streams' captures neither see nor forbid what happens while this lives.
class OutsideCaptures {
 public:
  OutsideCaptures() { CONVOY_CUDA(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~OutsideCaptures() { CONVOY_CUDA_RELEASE(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

#define CONVOY_CUBLAS(call)                                                         \
  do {                                                                              \
    const cublasStatus_t convoy_status = (call);                                    \
    CONVOY_CHECK(convoy_status == CUBLAS_STATUS_SUCCESS,                            \
                 std::string(#call) + ": " + calls_->status_string(convoy_status)); \
  } while (false)

// Random operands, and room for the results.
struct CudaMatmul::Trial {
  Trial(int out_features, int in_features, int rows);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  Product part(RowRange rows, void* out) const {
    return {weight,       x + static_cast<ptrdiff_t>(rows.first) * in_features,
            out,          in_features,
            out_features, out_features,
            in_features,  rows.count};
  }

  int out_features, in_features;
  int all_rows;
  void* memory = nullptr;
  uint16_t* weight;
  uint16_t* x;
  unsigned char* all_out;
  unsigned char* part_out;
  uint32_t* differ;
  cudaStream_t stream = nullptr;
};

CudaMatmul::Trial::Trial(int out, int in, int longest)
    : out_features(out),
      in_features(in),
      all_rows(longest > kTrialRows ? padded_rows(longest) : kTrialRows) {
  const auto n = static_cast<size_t>(out), k = static_cast<size_t>(in);
  const auto all = static_cast<size_t>(all_rows);
  const size_t bytes = rounded_up(n * k * 2) + rounded_up(all * k * 2) + rounded_up(all * n * 4) +
                       rounded_up(kTrialRows * n * 4) + rounded_up(sizeof(uint32_t));
  if (const cudaError_t error = cudaMalloc(&memory, bytes); error != cudaSuccess) {
    cudaGetLastError();  // the refusal is handled; later calls must not report it again
    throw StartError("cannot allocate " + std::to_string(bytes) +
                     " bytes to check the matrix product " + std::to_string(out) + " x " +
                     std::to_string(in) + ": " + cuda::error_text(error));
  }
  auto* next = static_cast<unsigned char*>(memory);
  const auto take = [&next](size_t size) {
    unsigned char* taken = next;
    next += rounded_up(size);
    return taken;
  };
  weight = reinterpret_cast<uint16_t*>(take(n * k * 2));
  x = reinterpret_cast<uint16_t*>(take(all * k * 2));
  all_out = take(all * n * 4);
  part_out = take(kTrialRows * n * 4);
  differ = reinterpret_cast<uint32_t*>(take(sizeof(uint32_t)));
  CONVOY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cuda::fill_trial(stream, weight, n * k, 0, 1);
  cuda::fill_trial(stream, x, all * k, 0, 2);
}

CudaMatmul::Trial::~Trial() {
  if (stream != nullptr) CONVOY_CUDA_RELEASE(cudaStreamDestroy(stream));
  CONVOY_CUDA_RELEASE(cudaFree(memory));
}

CudaMatmul::CudaMatmul() : calls_(open_cublas_lt()) {
  check_may_stall("opening cuBLASLt");
  const OutsideCaptures outside;
  CONVOY_CUDA(cudaGetDevice(&ordinal_));
  if (const cublasStatus_t status = calls_->create(&handle_); status != CUBLAS_STATUS_SUCCESS)
    throw StartError(std::string("cuBLASLt cannot start: ") + calls_->status_string(status));
  if (const cudaError_t error = cudaMalloc(&workspace_, workspace_bytes()); error != cudaSuccess) {
    cudaGetLastError();
    calls_->destroy(handle_);
    throw StartError("cannot allocate the workspace of matrix products: " +
                     cuda::error_text(error));
  }
  CONVOY_CUBLAS(calls_->description_init(&description_, sizeof(description_), CUBLAS_COMPUTE_32F,
                                         CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CONVOY_CUBLAS(calls_->description_set(&description_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof(transposed)));
}

CudaMatmul::~CudaMatmul() {
  check_may_stall("closing cuBLASLt");
  cuda::release_on(ordinal_, cudaFree, workspace_);
  calls_->destroy(handle_);
}

bool CudaMatmul::takes(const LinearArgs& args) {
  const ptrdiff_t out_bytes = args.f32_out ? 4 : 2;
  return args.weight.in_features % 8 == 0 && args.weight.out_features % 8 == 0 &&
         aligned(args.weight.data) && aligned(args.x) && aligned(args.out) &&
         args.x_row_stride * 2 % kAlignment == 0 &&
         args.out_row_stride * out_bytes % kAlignment == 0;
}

// Seen from cuBLASLt, which counts columns first: out' [N, rows] = weight'^T [N, K] x' [K, rows].
cublasStatus_t CudaMatmul::multiply(cudaStream_t stream, const Product& product, Kind kind,
                                    const cublasLtMatmulAlgo_t& algorithm) {
  const auto n = static_cast<uint64_t>(product.out_features);
  const auto k = static_cast<uint64_t>(product.in_features);
  const auto rows = static_cast<uint64_t>(product.rows);
  cublasLtMatrixLayoutOpaque_t weight, x, out;
  calls_->layout_init(&weight, sizeof(weight), CUDA_R_16BF, k, n, product.in_features);
  calls_->layout_init(&x, sizeof(x), CUDA_R_16BF, k, rows, product.x_row_stride);
  calls_->layout_init(&out, sizeof(out), kind.f32_out ? CUDA_R_32F : CUDA_R_16BF, n, rows,
                      product.out_row_stride);
  const float one = 1.0F, addend = kind.accumulate ? 1.0F : 0.0F;
  return calls_->matmul(handle_, &description_, &one, product.weight, &weight, product.x, &x,
                        &addend, product.out, &out, product.out, &out, &algorithm, workspace_,
                        workspace_bytes(), stream);
}

std::vector<cublasLtMatmulAlgo_t> CudaMatmul::candidates(int out_features, int in_features,
                                                         Kind kind) {
  const auto n = static_cast<uint64_t>(out_features), k = static_cast<uint64_t>(in_features);
  cublasLtMatrixLayoutOpaque_t weight, x, out;
  calls_->layout_init(&weight, sizeof(weight), CUDA_R_16BF, k, n, in_features);
  calls_->layout_init(&x, sizeof(x), CUDA_R_16BF, k, kReferenceRows, in_features);
  calls_->layout_init(&out, sizeof(out), kind.f32_out ? CUDA_R_32F : CUDA_R_16BF, n, kReferenceRows,
                      out_features);
  cublasLtMatmulPreferenceOpaque_t preference;
  CONVOY_CUBLAS(calls_->preference_init(&preference, sizeof(preference)));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    CONVOY_CUBLAS(calls_->preference_set(&preference, name, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes()});
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  for (const auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(name, kAlignment);

  cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
  int count = 0;
  std::vector<cublasLtMatmulAlgo_t> found;
  if (calls_->heuristic(handle_, &description_, &weight, &x, &out, &out, &preference, kCandidates,
                        results, &count) != CUBLAS_STATUS_SUCCESS)
    return found;  // "not supported": the shape is ours to compute
  for (const auto& result : std::span(results, static_cast<size_t>(count))) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    int32_t splits = 0;
    uint32_t reduction = 0;
    size_t written = 0;
    CONVOY_CUBLAS(calls_->config_get(&result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                     sizeof(splits), &written));
    CONVOY_CUBLAS(calls_->config_get(&result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                     &reduction, sizeof(reduction), &written));
    // Splits of K would tie the order of a sum to how many tiles there are.
    if (splits == 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE) found.push_back(result.algo);
  }
  return found;
}

bool CudaMatmul::rows_agree(const Trial& trial, Kind kind, const cublasLtMatmulAlgo_t& algorithm) {
  const auto n = static_cast<size_t>(trial.out_features);
  const size_t row_bytes = n * (kind.f32_out ? 4 : 2);
  // Also what an accumulating product adds to.
  const auto run = [&](RowRange rows, unsigned char* out) {
    const size_t count = static_cast<size_t>(rows.count) * n;
    cuda::fill_trial(trial.stream, reinterpret_cast<uint16_t*>(out), count,
                     static_cast<size_t>(rows.first) * n, 3);
    return multiply(trial.stream, trial.part(rows, out), kind, algorithm) == CUBLAS_STATUS_SUCCESS;
  };
  CONVOY_CUDA(cudaMemsetAsync(trial.differ, 0, sizeof(uint32_t), trial.stream));
  if (!run({0, trial.all_rows}, trial.all_out)) return false;
  std::vector<RowRange> parts(std::begin(kTrialParts), std::end(kTrialParts));
  if (trial.all_rows > kTrialRows) {
    parts.push_back({0, kTrialRows});
    parts.push_back({trial.all_rows - kTrialRows, kTrialRows});
  }
  for (const RowRange part : parts) {
    if (!run(part, trial.part_out)) return false;
    cuda::find_difference(trial.stream, trial.part_out,
                          trial.all_out + static_cast<size_t>(part.first) * row_bytes,
                          static_cast<size_t>(part.count) * row_bytes, trial.differ);
  }
  uint32_t differ = 1;
  CONVOY_CUDA(
      cudaMemcpyAsync(&differ, trial.differ, sizeof(differ), cudaMemcpyDefault, trial.stream));
  CONVOY_CUDA(cudaStreamSynchronize(trial.stream));
  return differ == 0;
}

const CudaMatmul::Algorithms& CudaMatmul::algorithms(int out_features, int in_features, int rows) {
  const std::lock_guard lock(mutex_);
  const std::pair shape(out_features, in_features);
  if (const auto found = prepared_.find(shape); found != prepared_.end()) return found->second;
  check_may_stall("choosing a matrix product");
  const OutsideCaptures outside;
  const Trial trial(out_features, in_features, rows);
  Algorithms chosen;
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    for (const auto& candidate : candidates(out_features, in_features, kKinds[i])) {
      if (!rows_agree(trial, kKinds[i], candidate)) continue;
      chosen[i] = candidate;
      break;
    }
  }
  Algorithms& kept = prepared_[shape];
  std::copy(std::begin(chosen), std::end(chosen), std::begin(kept));
  return kept;
}

void CudaMatmul::prepare(int out_features, int in_features, int rows) {
  if (out_features % 8 == 0 && in_features % 8 == 0) algorithms(out_features, in_features, rows);
}

bool CudaMatmul::run(cudaStream_t stream, const LinearArgs& args) {
  const Algorithms& all = algorithms(args.weight.out_features, args.weight.in_features, args.rows);
  const size_t kind = args.f32_out ? 2 : args.accumulate ? 1 : 0;
  if (!all[kind]) return false;
  const int padded = padded_rows(args.rows);
  const Product product = {args.weight.data,
                           args.x,
                           args.out,
                           args.x_row_stride,
                           args.out_row_stride,
                           args.weight.out_features,
                           args.weight.in_features,
                           padded <= args.padded_rows ? padded : args.rows};
  CONVOY_CUBLAS(multiply(stream, product, kKinds[kind], *all[kind]));
  return true;
}

}  // namespace convoy
