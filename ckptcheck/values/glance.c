/* One pass over the patterns of a tensor. numpy needs two for the same, and a third for the zeros: see glance.py. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef CLONES /* one library for every processor: the loader takes the copy that this one can run */
#define CLONES
#endif

#define TILE 4096 /* bytes: what is looked at twice is in the first cache */
#define APART 512 /* bytes: a run of 1,024 zeros holds a whole word of eight at a multiple of this */

uint32_t glance_version(void) { return 1; }

static int zero_word(const unsigned char *begin, size_t nbytes) {
  int zero = 0;
  for (size_t at = 0; at + 8 <= nbytes; at += APART) {
    uint64_t word;
    memcpy(&word, begin + at, 8);
    zero |= word == 0;
  }
  return zero;
}

/* tops: for each `chunk` elements the largest pattern without sign, where there is one. Returns whether a word that every
   long run of zeros would hold is zero. */
#define GLANCE(BITS)                                                                                                   \
  CLONES int glance_##BITS(const uint##BITS##_t *patterns, size_t number, size_t chunk, int has_sign, uint64_t *tops) { \
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
        zero |= zero_word((const unsigned char *)tile, length * sizeof *patterns);                                     \
      }                                                                                                                \
      if (has_sign && highest >= sign) {                                                                               \
        highest -= sign;                                                                                               \
        highest = highest > (uint##BITS##_t)largest ? highest : (uint##BITS##_t)largest;                               \
      }                                                                                                                \
      *tops++ = highest;                                                                                               \
    }                                                                                                                  \
    return zero;                                                                                                       \
  }

GLANCE(8)
GLANCE(16)
GLANCE(32)
GLANCE(64)
