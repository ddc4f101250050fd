// Matrix products of prompts through cuBLASLt, which is opened at run time: programs start on
// machines without it.
//
// A product (out_features, in_features, accumulate, f32_out) has one algorithm for every number of
// rows: the first that cuBLASLt proposes for kReferenceRows rows without splits of K, and whose
// bits of a row were seen not to depend on the number of rows. It is chosen and checked once, by
// prepare(), and nothing is created or allocated afterwards: a new shape while links are open ends
// the process.
//
// The products of one object share a workspace: they are enqueued on one stream at a time.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/ops/op_set.h"

namespace convoy {

struct CublasLtCalls;

class CudaMatmul {
 public:
  /// Opens the library on the device that the calling thread is bound to. Throws StartError that
  /// lists where it was looked for.
  CudaMatmul();
  ~CudaMatmul();
  CudaMatmul(const CudaMatmul&) = delete;
  CudaMatmul& operator=(const CudaMatmul&) = delete;

  /// Device memory that an object holds.
  static constexpr size_t workspace_bytes() { return size_t{32} << 20; }

  /// Whether addresses, strides and shape are multiples of 16 bytes.
  static bool takes(const LinearArgs& args);

  /// Chooses and checks the algorithms of a weight's products, for `rows` rows and fewer. Throws
  /// StartError when there is no memory for the trial. May be called while a stream captures.
  void prepare(int out_features, int in_features, int rows);

  /// False when no algorithm passed: the caller has to compute the product itself. Prepares a
  /// weight's shape that is new.
  bool run(cudaStream_t stream, const LinearArgs& args);

 private:
  struct Kind {
    bool accumulate, f32_out;
  };
  static constexpr Kind kKinds[] = {{false, false}, {true, false}, {false, true}};
  // One of kKinds. Absent: no algorithm passed.
  using Algorithms = std::optional<cublasLtMatmulAlgo_t>[3];
  struct Product {
    const void* weight;
    const void* x;
    void* out;
    int64_t x_row_stride, out_row_stride;
    int out_features, in_features, rows;
  };
  struct Trial;

  std::vector<cublasLtMatmulAlgo_t> candidates(int out_features, int in_features, Kind kind);
  bool rows_agree(const Trial& trial, Kind kind, const cublasLtMatmulAlgo_t& algorithm);
  cublasStatus_t multiply(cudaStream_t stream, const Product& product, Kind kind,
                          const cublasLtMatmulAlgo_t& algorithm);
  const Algorithms& algorithms(int out_features, int in_features, int rows);

  std::unique_ptr<CublasLtCalls> calls_;
  int ordinal_ = 0;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  cublasLtMatmulDescOpaque_t description_{};
  std::mutex mutex_;  // guards prepared_
  std::map<std::pair<int, int>, Algorithms> prepared_;
};

}  // namespace convoy
