#include "kernels/cuda/cublas_lt_calls.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/exit_code.h"

namespace convoy {
namespace {

#define CONVOY_TEXT_OF(macro) CONVOY_TEXT(macro)
#define CONVOY_TEXT(text) #text
// Of the toolkit's version: the layout of what it is given is no other's.
constexpr const char* kLibrary = "libcublasLt.so." CONVOY_TEXT_OF(CUBLAS_VER_MAJOR);
// Where NVIDIA's Python packages keep it, below a site-packages folder.
constexpr const char* kPackageFolders[] = {"nvidia/cu" CONVOY_TEXT_OF(CUBLAS_VER_MAJOR) "/lib",
                                           "nvidia/cublas/lib"};

void add_matches(std::vector<std::string>& paths, const std::string& pattern) {
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.insert(paths.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The plain name first: the loader knows LD_LIBRARY_PATH and the system's folders.
std::vector<std::string> places() {
  std::vector<std::string> paths = {kLibrary};
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string home = environment(name); !home.empty())
      paths.push_back(home + "/lib64/" + kLibrary);
  }
  paths.push_back(std::string("/usr/local/cuda/lib64/") + kLibrary);
  for (const char* folder : kPackageFolders) {
    const std::string file = std::string(folder) + "/" + kLibrary;
    // A program that is itself part of a Python package lies below the same site-packages.
    std::error_code error;
    std::filesystem::path above = std::filesystem::read_symlink("/proc/self/exe", error);
    for (int level = 0; level < 4 && above.has_relative_path(); ++level) {
      above = above.parent_path();
      add_matches(paths, (above / file).string());
    }
    if (const std::string venv = environment("VIRTUAL_ENV"); !venv.empty())
      add_matches(paths,
                  (std::filesystem::path(venv) / "lib/python3*/site-packages" / file).string());
    add_matches(paths, "/usr/local/lib/python3*/*-packages/" + file);
    add_matches(paths, "/usr/lib/python3*/*-packages/" + file);
  }
  return paths;
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw StartError(std::string(kLibrary) + " has no " + name);
}

}  // namespace

std::unique_ptr<CublasLtCalls> open_cublas_lt() {
  void* library = nullptr;
  std::string tried;
  for (const std::string& path : places()) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    tried += (tried.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (library == nullptr) {
    throw StartError(
        std::string(kLibrary) +
        " (NVIDIA cuBLAS 13, needed for prompts on CUDA devices) cannot be opened: " + tried);
  }
  auto calls = std::make_unique<CublasLtCalls>();
  find(library, "cublasLtCreate", calls->create);
  find(library, "cublasLtDestroy", calls->destroy);
  find(library, "cublasLtGetStatusString", calls->status_string);
  find(library, "cublasLtMatrixLayoutInit_internal", calls->layout_init);
  find(library, "cublasLtMatmulDescInit_internal", calls->description_init);
  find(library, "cublasLtMatmulDescSetAttribute", calls->description_set);
  find(library, "cublasLtMatmulPreferenceInit_internal", calls->preference_init);
  find(library, "cublasLtMatmulPreferenceSetAttribute", calls->preference_set);
  find(library, "cublasLtMatmulAlgoGetHeuristic", calls->heuristic);
  find(library, "cublasLtMatmulAlgoConfigGetAttribute", calls->config_get);
  find(library, "cublasLtMatmul", calls->matmul);
  return calls;
}

}  // namespace convoy
