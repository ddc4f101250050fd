// The data package that ICU is linked with: an empty one. Normalisation, case mapping and character
// properties are compiled into ICU itself; what its 30 MB package holds besides (locales,
// collation, break rules) is used nowhere here.

#include <unicode/udata.h>
#include <unicode/utypes.h>

#include <cstddef>
#include <cstdint>

namespace {

// The layout ICU's loader expects of a package: a header that names the format "ToCP" (table of
// contents with pointers), then the number of entries.
struct EmptyPackage {
  uint16_t header_bytes;
  uint8_t magic[2];
  UDataInfo info;
  char padding[8];
  uint32_t entries;
  uint32_t reserved;
};
static_assert(offsetof(EmptyPackage, info) == 4 &&
              offsetof(EmptyPackage, entries) == 4 + sizeof(UDataInfo) + 8);

}  // namespace

extern "C" {
extern const EmptyPackage U_ICUDATA_ENTRY_POINT;
alignas(16) const EmptyPackage U_ICUDATA_ENTRY_POINT = {offsetof(EmptyPackage, entries),
                                                        {0xda, 0x27},
                                                        {sizeof(UDataInfo),
                                                         0,
                                                         U_IS_BIG_ENDIAN,
                                                         U_CHARSET_FAMILY,
                                                         U_SIZEOF_UCHAR,
                                                         0,
                                                         {'T', 'o', 'C', 'P'},
                                                         {1, 0, 0, 0},
                                                         {0, 0, 0, 0}},
                                                        {},
                                                        0,
                                                        0};
}
