// libstdc++'s static archive refers to arc4random, which glibc has only since 2.36. This one serves
// older systems.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" uint32_t arc4random() noexcept {
  uint32_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != sizeof(value)) std::abort();
  return value;
}
