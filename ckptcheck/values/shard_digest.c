/* Adds a run of bytes to the two sums of a shard digest: see runtime/worker/ckptcheck_worker/shard_digest.py, which defines it. */

#define _FILE_OFFSET_BITS 64 /* pread of large files where pointers have 32 bits */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX 1
#endif

#define WORDS 256 /* words of eight bytes in a block; their factors fit into the first-level cache */
#define LOW 0xffffffffu

uint32_t shard_digest_version(void) { return 3; }

/* factors: [half][low or high digit][word], each below 2^32. */
static void add_block(const unsigned char *bytes, const uint64_t *factors, uint64_t *sums) {
  uint64_t first = 0, second = 0;
  for (size_t k = 0; k < WORDS; k++) {
    uint64_t word;
    memcpy(&word, bytes + 8 * k, 8);
    uint64_t low = word & LOW, high = word >> 32;
    first += low * factors[k] + high * factors[WORDS + k];
    second += low * factors[2 * WORDS + k] + high * factors[3 * WORDS + k];
  }
  sums[0] = first;
  sums[1] = second;
}

#ifdef HAS_AVX
#define LOAD(at) _mm256_loadu_si256((const __m256i *)(at))
__attribute__((target("avx2"))) static uint64_t add_lanes(__m256i lanes) {
  uint64_t parts[4];
  _mm256_storeu_si256((__m256i *)parts, lanes);
  return parts[0] + parts[1] + parts[2] + parts[3];
}

/* _mm256_mul_epu32 multiplies the low halves of words, so the high halves need not be cleared. */
__attribute__((target("avx2"))) static void add_block_avx2(const unsigned char *bytes, const uint64_t *factors, uint64_t *sums) {
  __m256i first = _mm256_setzero_si256(), second = first, third = first, fourth = first;
  for (size_t k = 0; k < WORDS; k += 4) {
    __m256i low = LOAD(bytes + 8 * k), high = _mm256_srli_epi64(low, 32);
    first = _mm256_add_epi64(first, _mm256_mul_epu32(low, LOAD(factors + k)));
    second = _mm256_add_epi64(second, _mm256_mul_epu32(high, LOAD(factors + WORDS + k)));
    third = _mm256_add_epi64(third, _mm256_mul_epu32(low, LOAD(factors + 2 * WORDS + k)));
    fourth = _mm256_add_epi64(fourth, _mm256_mul_epu32(high, LOAD(factors + 3 * WORDS + k)));
  }
  sums[0] = add_lanes(first) + add_lanes(second);
  sums[1] = add_lanes(third) + add_lanes(fourth);
}

#define LOAD_WIDE(at) _mm512_loadu_si512((const void *)(at))
__attribute__((target("avx512f"))) static void add_block_avx512(const unsigned char *bytes, const uint64_t *factors, uint64_t *sums) {
  __m512i first = _mm512_setzero_si512(), second = first, third = first, fourth = first;
  for (size_t k = 0; k < WORDS; k += 8) {
    __m512i low = LOAD_WIDE(bytes + 8 * k), high = _mm512_srli_epi64(low, 32);
    first = _mm512_add_epi64(first, _mm512_mul_epu32(low, LOAD_WIDE(factors + k)));
    second = _mm512_add_epi64(second, _mm512_mul_epu32(high, LOAD_WIDE(factors + WORDS + k)));
    third = _mm512_add_epi64(third, _mm512_mul_epu32(low, LOAD_WIDE(factors + 2 * WORDS + k)));
    fourth = _mm512_add_epi64(fourth, _mm512_mul_epu32(high, LOAD_WIDE(factors + 3 * WORDS + k)));
  }
  sums[0] = _mm512_reduce_add_epi64(_mm512_add_epi64(first, second));
  sums[1] = _mm512_reduce_add_epi64(_mm512_add_epi64(third, fourth));
}
#endif

static uint64_t weigh_block(uint64_t seed, uint64_t block) { /* splitmix64 */
  uint64_t word = seed + (block + 1) * 0x9E3779B97F4A7C15u;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return (word ^ (word >> 31)) | 1;
}

/* Adds `rows` runs of `length` bytes. Run r lies at bytes + r * pitch, and is byte start + r * stride of the tensor and what follows. */
void shard_digest_add(const unsigned char *bytes, size_t rows, size_t length, size_t pitch, uint64_t start, uint64_t stride,
                      const uint64_t *factors, const uint64_t *seeds, uint64_t *sums) {
  void (*add)(const unsigned char *, const uint64_t *, uint64_t *) = add_block;
#ifdef HAS_AVX
  if (__builtin_cpu_supports("avx2")) add = add_block_avx2;
  if (__builtin_cpu_supports("avx512f")) add = add_block_avx512;
#endif
  unsigned char padded[8 * WORDS];
  for (size_t row = 0; row < rows; row++) {
    const unsigned char *run = bytes + row * pitch;
    uint64_t at = start + row * stride;
    size_t left = length;
    while (left) {
      uint64_t block = at / (8 * WORDS), parts[2];
      size_t skip = (size_t)(at % (8 * WORDS)), part = 8 * WORDS - skip < left ? 8 * WORDS - skip : left;
      const unsigned char *whole = run;
      if (part < 8 * WORDS) { /* the rest of the block is zero, which adds nothing */
        memset(padded, 0, sizeof padded);
        memcpy(padded + skip, run, part);
        whole = padded;
      }
      add(whole, factors, parts);
      for (int half = 0; half < 2; half++) sums[half] += parts[half] * weigh_block(seeds[half], block);
      run += part;
      at += part;
      left -= part;
    }
  }
}

/* Adds `length` bytes of an open file from `offset` on, the first of which is byte `start` of the tensor. They are read into `block`,
 * a multiple of 2048 bytes that stays in the processor's own cache. Returns how many the file has, or -1 with errno. */
int64_t shard_digest_read(int file, uint64_t offset, uint64_t length, uint64_t start, unsigned char *block, size_t size,
                          const uint64_t *factors, const uint64_t *seeds, uint64_t *sums) {
  uint64_t done = 0;
  while (done < length) {
    ssize_t got = pread(file, block, length - done < size ? length - done : size, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    shard_digest_add(block, 1, (size_t)got, 0, start + done, 0, factors, seeds, sums);
    done += (uint64_t)got;
  }
  return (int64_t)done;
}
