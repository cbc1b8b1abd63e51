/* Computes in one pass what numpy needs three for, two maxima and a check for zeros: see pattern_max.py. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef CLONES /* one library for every processor: the loader takes the fastest copy that this processor can run */
#define CLONES
#endif

#define TILE 4096 /* bytes: small enough that the second read of a tile hits the first-level cache */
#define STRIDE 512 /* bytes: a run of 1,024 zero bytes covers an aligned word of eight at a multiple of this */

uint32_t pattern_max_version(void) { return 2; }

static int has_zero_word(const unsigned char *begin, size_t nbytes) {
  int zero = 0;
  for (size_t at = 0; at + 8 <= nbytes; at += STRIDE) {
    uint64_t word;
    memcpy(&word, begin + at, 8);
    zero |= word == 0;
  }
  return zero;
}

/* Writes to `maxima` the largest pattern without its sign of each `chunk` elements. Returns whether a word is zero that every
   long run of zeros would cover. */
#define PATTERN_MAX(BITS)                                                                                              \
  CLONES int pattern_max_##BITS(const uint##BITS##_t *patterns, size_t number, size_t chunk, int has_sign, uint64_t *maxima) { \
    const uint##BITS##_t sign = (uint##BITS##_t)1 << (BITS - 1);                                                       \
    int zero = 0;                                                                                                      \
    for (size_t begin = 0; begin < number; begin += chunk) {                                                           \
      size_t end = number - begin < chunk ? number : begin + chunk;                                                    \
      uint##BITS##_t highest = 0;                                                                                      \
      int##BITS##_t largest = 0;                                                                                       \
      for (size_t at = begin; at < end; at += TILE / sizeof *patterns) {                                               \
        const uint##BITS##_t *tile = patterns + at;                                                                    \
        size_t length = end - at < TILE / sizeof *patterns ? end - at : TILE / sizeof *patterns;                       \
        uint##BITS##_t high = 0;                                                                                       \
        int##BITS##_t large = 0;                                                                                       \
        for (size_t k = 0; k < length; k++) {                                                                          \
          int##BITS##_t as_signed = (int##BITS##_t)tile[k];                                                            \
          high = tile[k] > high ? tile[k] : high;                                                                      \
          large = as_signed > large ? as_signed : large;                                                               \
        }                                                                                                              \
        highest = high > highest ? high : highest;                                                                     \
        largest = large > largest ? large : largest;                                                                   \
        zero |= has_zero_word((const unsigned char *)tile, length * sizeof *patterns);                                 \
      }                                                                                                                \
      if (has_sign && highest >= sign) {                                                                               \
        highest -= sign;                                                                                               \
        highest = highest > (uint##BITS##_t)largest ? highest : (uint##BITS##_t)largest;                               \
      }                                                                                                                \
      *maxima++ = highest;                                                                                             \
    }                                                                                                                  \
    return zero;                                                                                                       \
  }

PATTERN_MAX(8)
PATTERN_MAX(16)
PATTERN_MAX(32)
PATTERN_MAX(64)

/* The largest patterns of many small pieces in one call, and which of them need a closer look: they may hold a run of zeros, or
   begin with elements that are all the same. */
#define PATTERN_MAX_MANY(BITS)                                                                                         \
  void pattern_max_many_##BITS(const unsigned char *base, const int64_t *begins, const int64_t *sizes, size_t number,  \
                               int has_sign, uint64_t *maxima, unsigned char *flags) {                                 \
    for (size_t k = 0; k < number; k++) {                                                                              \
      const unsigned char *bytes = base + begins[k];                                                                   \
      const uint##BITS##_t *patterns = (const uint##BITS##_t *)bytes;                                                  \
      size_t length = (size_t)sizes[k] / sizeof *patterns, same = 1;                                                   \
      int zero = pattern_max_##BITS(patterns, length, length, has_sign, maxima + k);                                   \
      while (same < length && same < 64 && patterns[same] == patterns[0]) same++;                                      \
      flags[k] = zero || !bytes[0] || !bytes[sizes[k] - 1] || same == length || same == 64;                            \
    }                                                                                                                  \
  }

PATTERN_MAX_MANY(8)
PATTERN_MAX_MANY(16)
PATTERN_MAX_MANY(32)
PATTERN_MAX_MANY(64)
