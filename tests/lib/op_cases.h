/* op_cases: every operation on made-up inputs of awkward shapes, with a plain double-precision reference.
 *
 * Each case reaches the device through the table alone, so that any backend can be put through it. Operations on streams
 * (attention, convolution, scan) are fed their rows by a schedule: 0 is each stream whole and alone, any other number cuts
 * and interleaves them at random; the outputs stand by stream and position, so schedules must agree. */
#pragma once
#include <stdint.h>

struct ops;

struct op_case {
    const char *name; // of the operation
    uint32_t size[6]; // its shape; op_cases.c says which is which
    double tolerance; // of the largest |reference|
    uint32_t outputs; // floats
    void (*run)(const struct ops *o, const struct op_case *c, uint32_t schedule, float *ret);
    void (*reference)(const struct op_case *c, double *ret);
    double half_tolerance; // where linear layers round their inputs to 16 bits (CUDA); 0: tolerance
};

// Of the cases of EXL3, in size[5].
enum {
    EXL3_BIAS = 1,
    EXL3_OTHER = 2,   // the second part's codebook is 3INST
    EXL3_CHANNEL = 4, // an input a thousand times the others
    EXL3_ROW =
        8, // of every four rows the second is zero, the third has a NaN, the fourth an infinity
    EXL3_NORMAL = 16,  // normal inputs
    EXL3_FIFTY = 32,   // and one of them fifty times the others
    EXL3_NORM = 64,    // the call norms its rows
    EXL3_SWIGLU = 128, // or makes them of a gate
    EXL3_ALONE = 256,  // no plain part
};

extern const struct op_case op_cases[];
extern const uint32_t op_cases_count;
// More, where kernels of a GPU change their shape: too slow for the CPU and its references.
extern const struct op_case op_cases_rows[];
extern const uint32_t op_cases_rows_count;

// EXL3 products of a 27B's sizes, for their error: op_cases_error, rms in parts of the rms of the products in double precision.
extern const struct op_case op_cases_products[];
extern const uint32_t op_cases_products_count;
// At most, with normal inputs and with one of them fifty times the others.
#define OP_CASES_ERROR_MAX 7e-4
#define OP_CASES_ERROR_FIFTY_MAX 1.5e-3
double op_cases_error(const struct ops *o, const struct op_case *c);

// Of a value's bits, in order.
uint64_t op_cases_digest(uint64_t h, const float *v, uint32_t count);
