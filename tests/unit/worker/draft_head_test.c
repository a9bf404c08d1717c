#include "tests/lib/test.h"
TEST(nothing) {}
