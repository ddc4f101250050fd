// The functions of cuBLASLt that we call, found at run time.
#pragma once

#include <cublasLt.h>

#include <memory>

namespace convoy {

struct CublasLtCalls {
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtGetStatusString) status_string = nullptr;
  decltype(&::cublasLtMatrixLayoutInit_internal) layout_init = nullptr;
  decltype(&::cublasLtMatmulDescInit_internal) description_init = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) description_set = nullptr;
  decltype(&::cublasLtMatmulPreferenceInit_internal) preference_init = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) config_get = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
};

/// Opens libcublasLt.so.13 for the rest of the process. Throws StartError that lists where it was
/// looked for.
std::unique_ptr<CublasLtCalls> open_cublas_lt();

}  // namespace convoy
