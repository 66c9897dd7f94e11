/* UTF-8, as far as strings of JSON need it. */
#ifndef DMUON_BASE_UTF8_H
#define DMUON_BASE_UTF8_H

#include <stddef.h>

/* Bytes (1 to 4) of the well-formed sequence that text [nbytes >= 1] begins with; 0 when it begins with none (Unicode
 * table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF). */
size_t utf8_sequence(const char *text, size_t nbytes);

#endif
