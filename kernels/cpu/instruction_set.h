// Which of the kernel tables a processor can run.
#pragma once

#include <string>

#include "kernels/cpu/simd/kernel_table.h"

namespace convoy::cpu {

enum class InstructionSet { scalar, avx2, avx512 };

/// "scalar", "avx2" or "avx512".
const char* instruction_set_name(InstructionSet set);
bool processor_has(InstructionSet set);
/// Empty: the best the processor has. Throws UsageError for an unknown name or one the processor
/// lacks.
InstructionSet choose_instruction_set(const std::string& name);
const KernelTable& kernels_of(InstructionSet set);

}  // namespace convoy::cpu
