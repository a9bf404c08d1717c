/* safetensors: one file of tensors, mapped read-only, with every claim of its header checked before use.
 *
 * Layout (safetensors format, version 1): 8 bytes little-endian length N, N bytes of JSON, then the data. Each entry of
 * the JSON names a tensor with dtype, shape and data_offsets [begin, end) counted from the first byte of data;
 * "__metadata__" holds strings and is skipped. Data has neither holes nor overlaps and ends where the file ends.
 *
 * After a successful open a tensor's data lies inside the mapping, is bytes == elements * element size long, and starts
 * on a multiple of its element size. A file cut short while it is mapped raises SIGBUS, as with any mapping.
 * Immutable once open: any thread may read. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct err;
struct safetensors; // defined in safetensors.c

enum {
    SAFETENSORS_HEADER_BYTES_MAX = 100000000, // the bound of the format's own reader
    SAFETENSORS_DIMS_MAX = 8,
    SAFETENSORS_TENSORS_MAX = 1 << 20, // of one file; a 512-expert shard has some thousands
    SAFETENSORS_NAME_BYTES_MAX = 512,
};

enum safetensors_dtype {
    SAFETENSORS_BOOL,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_U16,
    SAFETENSORS_I16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_U32,
    SAFETENSORS_I32,
    SAFETENSORS_F32,
    SAFETENSORS_U64,
    SAFETENSORS_I64,
    SAFETENSORS_F64,
    SAFETENSORS_C64,
    SAFETENSORS_DTYPE_COUNT,
};
const char *safetensors_dtype_name(enum safetensors_dtype d); // "BF16", as the format spells it
uint32_t safetensors_dtype_bytes(enum safetensors_dtype d);

struct safetensors_tensor {
    const char *name;
    const char *path; // of the file it stands in
    enum safetensors_dtype dtype;
    uint32_t dims_count;                 // 0: a scalar, one element
    uint64_t dims[SAFETENSORS_DIMS_MAX]; // each at least 1
    uint64_t elements, bytes;
    const void *data;
};

// ST_CORRUPT names the file, the tensor, what was wanted and found; ST_UNSUPPORTED: a GGUF file in its place;
// ST_NOT_FOUND and ST_IO: as open(2) says.
int safetensors_open(struct safetensors **ret, const char *path, struct err *e);
// The same over len bytes in memory, which must outlive it. path only names it in messages.
int safetensors_open_mem(struct safetensors **ret, const char *path, const void *p, size_t len,
                         struct err *e);
void safetensors_close(struct safetensors *s); // NULL is fine

uint32_t safetensors_count(const struct safetensors *s);
const struct safetensors_tensor *safetensors_at(const struct safetensors *s,
                                                uint32_t idx); // by name
const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name);
const char *safetensors_path(const struct safetensors *s);
uint64_t safetensors_file_bytes(const struct safetensors *s);
const void *safetensors_file(const struct safetensors *s);    // the first byte of the file
uint64_t safetensors_data_start(const struct safetensors *s); // 8 + N: where data begins in it

// Elements first .. first+count-1 as fp32; exact. The tensor must be BF16, F16 or F32.
void safetensors_to_f32(const struct safetensors_tensor *t, uint64_t first, uint64_t count,
                        float *ret);
// "[2, 3]", cut to fit.
void safetensors_shape_text(const uint64_t *dims, uint32_t dims_count, char *ret, size_t ret_bytes);
