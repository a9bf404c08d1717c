/* nonce: random bytes of the kernel, as ids and seeds. Any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

void nonce_hex(char *ret,
               size_t digits); // digits lower-case hex digits (even, at most 64) and a NUL
uint64_t nonce_u64(void);
