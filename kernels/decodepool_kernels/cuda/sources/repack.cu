// A matrix from the file's blocks to the records of packing.py, to the byte: a warp a record of 16 outputs x 32 inputs.
#include "common.cuh"
#include "blocks.cuh"

#define TILE_OUTPUTS 16
#define BLOCK_INPUTS 32
#define GROUP_BLOCKS 4
#define PARTS (BLOCK_INPUTS / SUB_BLOCK)

// Where a tile's group begins: [pair of tiles][group of up to 4 blocks][tile of two][head, then records].
DEVICE i64 group_at(int tile, int group, int blocks, int record_bytes, int head_bytes) {
  const int groups = (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS, count = min(GROUP_BLOCKS, blocks - group * GROUP_BLOCKS);
  const i64 tile_bytes = (i64)blocks * record_bytes + groups * head_bytes;
  return (tile >> 1) * 2 * tile_bytes + (i64)group * 2 * (head_bytes + GROUP_BLOCKS * record_bytes) + (tile & 1) * (head_bytes + count * record_bytes);
}

struct Source {
  const u8* raw;
  int outputs, inputs;

  // The file's block that holds an input of an output, nothing past the last output; `at` becomes the input's place in it.
  METHOD const u8* block(int output, int input, int& at) const {
    at = input % FILE_BLOCK;
    if (output >= outputs) return 0;
    return raw + ((i64)output * (inputs / FILE_BLOCK) + input / FILE_BLOCK) * FILE_BYTES;
  }

  METHOD u32 code(int output, int input) const {
    int at;
    const u8* held = block(output, input, at);
    return held ? code_of(held, at) : 0;
  }
};

#if CODE_BITS == 8
DEVICE void put_codes(const Source& source, u32* record, int lane, int output, int input) {
  UNROLL for (int half = 0; half < 2; ++half)
    UNROLL for (int upper = 0; upper < 2; ++upper) {
      u32 word = 0;
      UNROLL for (int i = 0; i < 4; ++i) word |= source.code(output + 8 * upper, input + 16 * half + i) << (8 * i);
      record[lane * 4 + half * 2 + upper] = word;
    }
}
#elif CODE_BITS == 4
DEVICE void put_codes(const Source& source, u32* record, int lane, int output, int input) {
  UNROLL for (int upper = 0; upper < 2; ++upper) {
    u32 word = 0;
    UNROLL for (int half = 0; half < 2; ++half)
      UNROLL for (int i = 0; i < 4; ++i)
        word |= source.code(output + 8 * upper, input + 16 * half + i) << 4 * (2 * half + i / 2 + 4 * (i % 2));
    record[lane * 2 + upper] = word;
  }
}
#else
DEVICE void put_codes(const Source& source, u32* record, int lane, int output, int input) {
  UNROLL for (int half = 0; half < 2; ++half)
    UNROLL for (int pair = 0; pair < 2; ++pair)
      UNROLL for (int upper = 0; upper < 2; ++upper) {
        const int at = input + 16 * half + 2 * pair;
        const u32 low = source.code(output + 8 * upper, at), high = source.code(output + 8 * upper, at + 1);
        record[half * 128 + lane * 4 + pair * 2 + upper] = low | high << 16;
      }
}
#endif

#if SCALE_BYTES == 1
// A block's share of its group's head: factors [g][plane][output of two][block][part], each more by 128; units [g][plane][output of two],
// which every block of the group writes alike. Whether the units are finite.
DEVICE bool put_head(const Source& source, u8* head, int tile, int block, int lane) {
  const int planes = 1 + HAS_MINIMUM, output = lane / 2, minima = lane & 1, at_output = output % 8 * 2 * planes + minima * 2 + output / 8;
  if (minima >= planes) return true;
  int at;
  const u8* held = source.block(tile * TILE_OUTPUTS + output, block * BLOCK_INPUTS, at);
  const Scale unit = !held ? 0 : minima ? minimum_unit(held) : scale_unit(held);
  for (int part = 0; part < PARTS; part++) {
    const int of_block = at / SUB_BLOCK + part;
    head[(at_output * GROUP_BLOCKS + block % GROUP_BLOCKS) * PARTS + part] = !held ? 0 : 128 + (minima ? minimum_factor(held, of_block) : scale_factor(held, of_block));
  }
  ((Scale*)(head + planes * PARTS * TILE_OUTPUTS * GROUP_BLOCKS))[at_output] = unit;
  return is_finite(unit);
}
#elif SCALE_BYTES
// Scales (or minima) as [part][g][output of two]; whether all are finite.
DEVICE bool put_scales(const Source& source, Scale* target, int tile, int block, int lane, bool minima) {
  bool finite = true;
  for (int i = lane; i < PARTS * TILE_OUTPUTS; i += 32) {
    int at;
    const int part = i / TILE_OUTPUTS, row = i % TILE_OUTPUTS / 2 + 8 * (i % 2);
    const u8* held = source.block(tile * TILE_OUTPUTS + row, block * BLOCK_INPUTS + part * SUB_BLOCK, at);
    const Scale scale = !held ? 0 : minima ? minimum_of(held, at / SUB_BLOCK) : scale_of(held, at / SUB_BLOCK);
    target[i] = scale;
    finite &= is_finite(scale);
  }
  return finite;
}
#endif

extern "C" __global__ void __launch_bounds__(256)
    repack(const u8* raw, int outputs, int inputs, int tiles, int record_bytes, int head_bytes, u8* target, int* faults) {
  await_previous();
  const int blocks = inputs / BLOCK_INPUTS, lane = threadIdx.x & 31;
  const i64 record = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
  if (record >= (i64)tiles * blocks) return;
  const int tile = record / blocks, block = record % blocks;
  const Source source = {raw, outputs, inputs};
  u8* group = target + group_at(tile, block / GROUP_BLOCKS, blocks, record_bytes, head_bytes);
  u8* place = group + head_bytes + block % GROUP_BLOCKS * record_bytes;
  put_codes(source, (u32*)place, lane, tile * TILE_OUTPUTS + lane / 4, block * BLOCK_INPUTS + lane % 4 * 4);
  bool finite = true;
#if SCALE_BYTES == 1
  finite = put_head(source, group, tile, block, lane);
#elif SCALE_BYTES
  Scale* scales = (Scale*)(place + 64 * CODE_BITS);
  finite = put_scales(source, scales, tile, block, lane, false);
  if (HAS_MINIMUM) finite &= put_scales(source, scales + PARTS * TILE_OUTPUTS, tile, block, lane, true);
#else
  for (int i = 0; i < 32; ++i) finite &= is_finite_code(source.code(tile * TILE_OUTPUTS + i % 16, block * BLOCK_INPUTS + lane));
#endif
  if (!finite) *faults = 1;
}
