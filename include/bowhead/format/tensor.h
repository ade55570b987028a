/* SPDX-License-Identifier: Apache-2.0 */
/* What values consist of, and how hard they are pressed: numbers that the ABI and the formats
 * share. Append only. */
#ifndef BOWHEAD_FORMAT_TENSOR_H
#define BOWHEAD_FORMAT_TENSOR_H

/* Kinds of numbers. */
enum {
  BH_NUMBER_BF16 = 1,
  BH_NUMBER_FP16 = 2,
  BH_NUMBER_FP8_E4M3 = 3,
  BH_NUMBER_FP8_E5M2 = 4,
  BH_NUMBER_INT8 = 5,
  BH_NUMBER_BYTES = 6 /* no numbers: never cut into planes */
};

/* How much work goes into making frames; of two, the larger takes more and saves more. */
enum { BH_PROFILE_NONE = 0, BH_PROFILE_FAST = 1, BH_PROFILE_BALANCED = 2, BH_PROFILE_DENSE = 3 };

#endif
