#include "shared/stage/open_device.h"

#include <fmt/format.h>

#include "base/exit_code.h"

namespace convoy {

std::unique_ptr<Device> open_device(const std::string& id, int threads) {
  if (id == "cpu") return make_cpu_device({.threads = threads, .instruction_set = ""});
  throw StartError(fmt::format("device '{}': this version runs stages on CPU devices only; use --devices cpu,…", id));
}

}  // namespace convoy
