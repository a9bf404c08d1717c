/* math_f64: see math_f64.h. */
#include "kernels/math_f64.h"
#include "kernels/math_f64_steps.h"

double math_f64_exp(double x) {
    return math_f64_exp_of(x);
}

double math_f64_log(double x) {
    return math_f64_log_of(x);
}
