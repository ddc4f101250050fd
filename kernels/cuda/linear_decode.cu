// Linear layers of generated positions: which variant of the kernels serves.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/cuda/linear_decode.cuh"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/ops/scratch.h"

namespace convoy::cuda {
namespace {

// The next kernel may begin when a block has this many units to load: late enough that its own
// first loads do not come before the last ones here, early enough that its start is hidden.
constexpr int kTriggerUnits = 12;

template <typename Tile, void (*kKernel)(DecodeProblem)>
void launch_tile(cudaStream_t stream, const LinearArgs& args) {
  allow_shared_bytes<kKernel>(Tile::kSharedBytes);
  CONVOY_CHECK_OP(args.rows, <=, Tile::kColumns);
  const int units = (args.weight.in_features + kUnitValues - 1) / kUnitValues;
  const int chunk_units = (units + kChunks - 1) / kChunks;
  const DecodeProblem problem = {reinterpret_cast<const __nv_bfloat16*>(args.weight.data),
                                 static_cast<const __nv_bfloat16*>(args.x),
                                 args.x_row_stride,
                                 args.weight.out_features,
                                 args.weight.in_features,
                                 args.rows,
                                 chunk_units,
                                 std::min(Tile::kStages + kTriggerUnits, chunk_units),
                                 LinearOut(args)};
  const int tiles = (args.weight.out_features + Tile::kRows - 1) / Tile::kRows;
  launch(kKernel,
         {dim3(static_cast<unsigned>(tiles * Tile::kClusterBlocks)), dim3(Tile::kThreads),
          Tile::kSharedBytes, Tile::kClusterBlocks},
         stream, problem);
}

template <int kRowTiles, int kColumns, int kStages>
void narrow(cudaStream_t stream, const LinearArgs& args) {
  using Tile = NarrowTile<kRowTiles, kColumns, kStages>;
  launch_tile<Tile, narrow_kernel<Tile>>(stream, args);
}
template <int kColumns, int kStages>
void wide(cudaStream_t stream, const LinearArgs& args) {
  using Tile = WideTile<kColumns, kStages>;
  launch_tile<Tile, wide_kernel<Tile>>(stream, args);
}

struct Variant {
  int columns;  // it serves up to
  void (*run)(cudaStream_t stream, const LinearArgs& args);
};
// Measured on H200. Small tiles of rows keep the multiprocessors evenly busy; but every tile reads
// the columns anew, so that more columns want more rows beside them. Three blocks fit into a
// multiprocessor: the 320 tiles of 5120 rows are computed together, and as they leave, the next
// kernel's blocks come and load.
constexpr std::array kVariants = {Variant{1, narrow<1, 1, 4>}, Variant{8, narrow<1, 8, 3>},
                                  Variant{16, narrow<2, 16, 2>}, Variant{32, wide<32, 3>},
                                  Variant{64, wide<64, 3>}};
constexpr int kNarrowColumns = 16;
static_assert(kVariants.back().columns == kMaxGeneratedColumns);

// Clusters of blocks begin with compute capability 9.0; the code must have been built for it too.
// Elsewhere more columns take several passes.
bool has_wide_kernel() {
  using Tile = WideTile<64, 3>;
  static const bool has =
      code_version(wide_kernel<Tile>) >= 90 && shared_bytes_per_block() >= Tile::kSharedBytes;
  return has;
}

bool multiple_of_16(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

}  // namespace

bool decode_takes(const LinearArgs& args) {
  return args.weight.in_features % 8 == 0 && args.x_row_stride % 8 == 0 &&
         multiple_of_16(args.weight.data) && multiple_of_16(args.x);
}

void decode_linear(cudaStream_t stream, const LinearArgs& args) {
  const int most = has_wide_kernel() ? kMaxGeneratedColumns : kNarrowColumns;
  for (int first = 0; first < args.rows; first += most) {
    LinearArgs pass = args;
    pass.rows = std::min(args.rows - first, most);
    pass.x = activations_at(args.x, first * args.x_row_stride, 2);
    pass.out = activations_at(args.out, first * args.out_row_stride, args.f32_out ? 4 : 2);
    const auto variant =
        std::ranges::find_if(kVariants, [&](const Variant& v) { return pass.rows <= v.columns; });
    variant->run(stream, pass);
  }
}

}  // namespace convoy::cuda
