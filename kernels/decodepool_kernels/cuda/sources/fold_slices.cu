// The slices that a wide product left apart and nobody takes, folded in order: y = fma(acc, 2^-e, y), then the bias. A thread an output.
#define UNIT_OUTPUTS 256
#define TILES 1
#include "activation.cuh"
#include "parts.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256)
fold_slices(const __grid_constant__ Parts parts, u8* activation, int blocks, int columns, const int* step, int domain, const float* partials,
            int width) {
  let_next_start();
  await_previous();
  const Product p(parts, blocks, step[domain]);
  const int place = blockIdx.x, row = blockIdx.y;
  if (row >= p.rows) return;
  const Unit at = p.at(place * p.column_groups());
  const Part& part = parts.part[at.part];
  const int output = at.tile * 16 + threadIdx.x;
  if (output >= part.outputs) return;
  const Activation a = activation_at(activation, blocks, columns);
  const i64 from = (i64)row * width + place * UNIT_OUTPUTS + threadIdx.x;
  float sums[SLICES], y = 0.f;
  UNROLL for (int slice = 0; slice < SLICES; slice++) sums[slice] = partials[(i64)slice * p.rows * width + from];
  UNROLL for (int slice = 0; slice < SLICES; slice++) y = fmaf(sums[slice], a.scales[slice * columns + row], y);
  put_output(part, domain == WANTED ? row_array(step, WANTED_SLOTS)[row] : row, output, y);
}
