#include "kernels/cpu/instruction_set.h"

#include "base/check.h"
#include "base/exit_code.h"

namespace convoy::cpu {
namespace {

constexpr InstructionSet kBestFirst[] = {InstructionSet::avx512, InstructionSet::avx2,
                                         InstructionSet::scalar};

const KernelTable* table_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx512:
      return avx512_kernels();
    case InstructionSet::avx2:
      return avx2_kernels();
    case InstructionSet::scalar:
      break;
  }
  return scalar_kernels();
}

}  // namespace

const char* instruction_set_name(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx512:
      return "avx512";
    case InstructionSet::avx2:
      return "avx2";
    case InstructionSet::scalar:
      break;
  }
  return "scalar";
}

bool processor_has(InstructionSet set) {
  if (table_of(set) == nullptr) return false;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (set == InstructionSet::avx2) return avx2;
  if (set == InstructionSet::avx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  }
#endif
  return set == InstructionSet::scalar;
}

InstructionSet choose_instruction_set(const std::string& name) {
  for (const InstructionSet set : kBestFirst) {
    if (name.empty() ? processor_has(set) : name == instruction_set_name(set)) {
      if (!processor_has(set))
        throw UsageError("instruction set " + name + ": this processor does not have it");
      return set;
    }
  }
  throw UsageError("instruction set '" + name + "' is unknown; allowed: avx512, avx2, scalar");
}

const KernelTable& kernels_of(InstructionSet set) {
  const KernelTable* table = table_of(set);
  CONVOY_CHECK(table != nullptr, "no kernels for this processor");
  return *table;
}

}  // namespace convoy::cpu
