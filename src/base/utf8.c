#include "base/utf8.h"

#include <stdbool.h>

/* Well-formed sequences by first byte; only the second byte has a range of its own. */
typedef struct Lead {
    unsigned char first, last;            /* of the first byte  */
    unsigned char second_min, second_max; /* of the second byte */
    unsigned char len;                    /* bytes              */
} Lead;

static const Lead leads[] = {
    {0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
    {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
    {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
};

static bool matches(const Lead *lead, const unsigned char *b, size_t nbytes) {
    if (b[0] < lead->first || b[0] > lead->last || nbytes < lead->len)
        return false;
    if (lead->len > 1 && (b[1] < lead->second_min || b[1] > lead->second_max))
        return false;
    for (size_t i = 2; i < lead->len; i++) {
        if (b[i] < 0x80 || b[i] > 0xBF)
            return false;
    }
    return true;
}

size_t utf8_sequence(const char *text, size_t nbytes) {
    for (size_t i = 0; i < sizeof leads / sizeof leads[0]; i++) {
        if (matches(&leads[i], (const unsigned char *)text, nbytes))
            return leads[i].len;
    }
    return 0;
}
