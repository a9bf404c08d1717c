/* version: what this build is. Constant, any thread. */
#pragma once

const char *version_string(void); // "0.1.0"
const char *
version_commit(void); // short hash of the commit, "+" behind it when the tree had changes
