/* math_f64: exp and log in double, the same bits on every machine and C library.
 *
 * Only IEEE addition, subtraction, multiplication and division, no fused step and no table, so with contraction off
 * (as the whole build has it) a result depends on the argument alone. Error under 0.7 ulp for normal results.
 * Pure, any thread. */
#pragma once

// Overflows to infinity above 709.78, underflows to 0 below -745.13; NaN gives NaN. Subnormal results round twice.
double math_f64_exp(double x);
// log(0) is -infinity; of a negative number NaN.
double math_f64_log(double x);
