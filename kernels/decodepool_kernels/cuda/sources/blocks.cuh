// The block formats of GGUF by element, as weights/formats.py has them by array: FORMAT, the file's number of a type, picks one.
// A code is an integer, a scale f16 as it stands or f32, or a block's f16 unit times a factor; for F16 and BF16 a code is the value's bits.
#pragma once

#if SCALE_BYTES == 1 || SCALE_BYTES == 2
typedef u16 Scale;
DEVICE bool is_finite(u16 bits) { return (bits & 0x7c00) != 0x7c00; }
#elif SCALE_BYTES == 4
typedef float Scale;
DEVICE bool is_finite(float value) { return fabsf(value) < __int_as_float(0x7f800000); }
#endif

#if SCALE_BYTES == 1 && !HAS_MINIMUM
DEVICE Scale minimum_unit(const u8*) { return 0; }
DEVICE int minimum_factor(const u8*, int) { return 0; }
#elif SCALE_BYTES > 1 && !HAS_MINIMUM
DEVICE Scale minimum_of(const u8*, int) { return 0; }
#endif

DEVICE u16 half_bits(const u8* at) { return at[0] | at[1] << 8; }
DEVICE u32 nibble(const u8* packed, int at, int half) { return packed[at % half] >> (at / half * 4) & 15; }

#if FORMAT == 1 || FORMAT == 30  // F16, BF16
#define FILE_BLOCK 1
#define FILE_BYTES 2
#define EXPONENT (FORMAT == 1 ? 0x7c00u : 0x7f80u)
DEVICE u32 code_of(const u8* b, int) { return half_bits(b); }
DEVICE bool is_finite_code(u32 code) { return (code & EXPONENT) != EXPONENT; }
#endif

#if FORMAT == 2  // Q4_0
#define FILE_BLOCK 32
#define FILE_BYTES 18
DEVICE u32 code_of(const u8* b, int at) { return nibble(b + 2, at, 16); }
DEVICE u16 scale_of(const u8* b, int) { return half_bits(b); }
#endif

#if FORMAT == 3  // Q4_1
#define FILE_BLOCK 32
#define FILE_BYTES 20
DEVICE u32 code_of(const u8* b, int at) { return nibble(b + 4, at, 16); }
DEVICE u16 scale_of(const u8* b, int) { return half_bits(b); }
DEVICE u16 minimum_of(const u8* b, int) { return half_bits(b + 2); }
#endif

#if FORMAT == 6  // Q5_0
#define FILE_BLOCK 32
#define FILE_BYTES 22
DEVICE u32 code_of(const u8* b, int at) { return nibble(b + 6, at, 16) | (b[2 + at / 8] >> at % 8 & 1) << 4; }
DEVICE u16 scale_of(const u8* b, int) { return half_bits(b); }
#endif

#if FORMAT == 7  // Q5_1
#define FILE_BLOCK 32
#define FILE_BYTES 24
DEVICE u32 code_of(const u8* b, int at) { return nibble(b + 8, at, 16) | (b[4 + at / 8] >> at % 8 & 1) << 4; }
DEVICE u16 scale_of(const u8* b, int) { return half_bits(b); }
DEVICE u16 minimum_of(const u8* b, int) { return half_bits(b + 2); }
#endif

#if FORMAT == 8  // Q8_0
#define FILE_BLOCK 32
#define FILE_BYTES 34
DEVICE u32 code_of(const u8* b, int at) { return b[2 + at] ^ 0x80; }
DEVICE u16 scale_of(const u8* b, int) { return half_bits(b); }
#endif

#if FORMAT == 10  // Q2_K
#define FILE_BLOCK 256
#define FILE_BYTES 84
DEVICE u32 code_of(const u8* b, int at) { return b[16 + at / 128 * 32 + at % 32] >> at % 128 / 32 * 2 & 3; }
DEVICE u16 scale_unit(const u8* b) { return half_bits(b + 80); }
DEVICE u16 minimum_unit(const u8* b) { return half_bits(b + 82) ^ 0x8000; }
DEVICE int scale_factor(const u8* b, int part) { return b[part] & 15; }
DEVICE int minimum_factor(const u8* b, int part) { return b[part] >> 4; }
#endif

#if FORMAT == 11  // Q3_K
#define FILE_BLOCK 256
#define FILE_BYTES 110
DEVICE u32 code_of(const u8* b, int at) {
  return (b[32 + at / 128 * 32 + at % 32] >> at % 128 / 32 * 2 & 3) | (b[at % 32] >> at / 32 & 1) << 2;
}
DEVICE u16 scale_unit(const u8* b) { return half_bits(b + 108); }
DEVICE int scale_factor(const u8* b, int part) {
  const int low = nibble(b + 96, part, 8), high = b[104 + part % 4] >> part / 4 * 2 & 3;
  return (low | high << 4) - 32;
}
#endif

#if FORMAT == 12 || FORMAT == 13  // Q4_K, Q5_K
#define FILE_BLOCK 256
#define FILE_BYTES (FORMAT == 12 ? 144 : 176)
DEVICE u32 code_of(const u8* b, int at) {
  const u8* low = b + (FORMAT == 12 ? 16 : 48);
  const u32 code = low[at / 64 * 32 + at % 32] >> at % 64 / 32 * 4 & 15;
  return FORMAT == 12 ? code : code | (b[16 + at % 32] >> at / 32 & 1) << 4;
}
DEVICE u16 scale_unit(const u8* b) { return half_bits(b); }
DEVICE u16 minimum_unit(const u8* b) { return half_bits(b + 2) ^ 0x8000; }
DEVICE int scale_factor(const u8* b, int part) {
  const u8* packed = b + 4;
  return part < 4 ? packed[part] & 63 : (packed[part + 4] & 15) | packed[part - 4] >> 6 << 4;
}
DEVICE int minimum_factor(const u8* b, int part) {
  const u8* packed = b + 4;
  return part < 4 ? packed[part + 4] & 63 : packed[part + 4] >> 4 | packed[part] >> 6 << 4;
}
#endif

#if FORMAT == 14  // Q6_K
#define FILE_BLOCK 256
#define FILE_BYTES 210
DEVICE u32 code_of(const u8* b, int at) {
  const int half = at / 128, i = at % 128;
  return (b[half * 64 + i % 64] >> i / 64 * 4 & 15) | (b[128 + half * 32 + i % 32] >> i / 32 * 2 & 3) << 4;
}
DEVICE u16 scale_unit(const u8* b) { return half_bits(b + 208); }
DEVICE int scale_factor(const u8* b, int part) { return (signed char)b[192 + part]; }
#endif

#if FORMAT == 20  // IQ4_NL
#define FILE_BLOCK 32
#define FILE_BYTES 18
DEVICE u32 code_of(const u8* b, int at) {
  const u8 values[16] = {0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240};
  return values[nibble(b + 2, at, 16)];
}
DEVICE u16 scale_of(const u8* b, int) { return half_bits(b); }
#endif

#if FORMAT == 39  // MXFP4
#define FILE_BLOCK 32
#define FILE_BYTES 17
DEVICE u32 code_of(const u8* b, int at) {
  const u8 values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  return values[nibble(b + 1, at, 16)];
}
DEVICE float scale_of(const u8* b, int) { return b[0] == 255 ? NOT_A_NUMBER : ldexpf(1.0f, b[0] - 128); }
#endif
