/* nfc: Unicode normalisation form C as the reference tokeniser does it: with the characters of Unicode 9.
 *
 * A vocabulary was trained with one version's rules, so a newer library must not change the ids: what Unicode added
 * after version 9 stays as it is and orders nothing. Linear in the text, whatever marks it piles up. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct strbuf;

// True: the text is certainly its own form C (ASCII, Latin-1, nothing that could combine). False: find out.
bool nfc_is_plain(const char *text, size_t len);
// Appends form C of a valid UTF-8 text.
void nfc_add(struct strbuf *out, const char *text, size_t len);
