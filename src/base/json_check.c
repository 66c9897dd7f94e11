#include "base/json_check.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum { MAX_NUMBER_BYTES = 63 };

/* A cursor. `at` stops at the byte that breaks a rule, and `rule` says which; NUL at `end` needs no bounds checks. */
typedef struct Scan {
    const char *at, *end;
    const char *rule; /* NULL while all is well */
    int depth;
} Scan;

static bool breach(Scan *scan, const char *rule) {
    scan->rule = rule;
    return false;
}

static void skip_space(Scan *scan) {
    while (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r')
        scan->at++;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool scan_digits(Scan *scan) {
    if (!is_digit(*scan->at))
        return breach(scan, "a digit is missing in a number");
    while (is_digit(*scan->at))
        scan->at++;
    return true;
}

static bool scan_number(Scan *scan) {
    const char *begin = scan->at;
    if (*scan->at == '-')
        scan->at++;
    if (scan->at[0] == '0' && is_digit(scan->at[1]))
        return breach(scan, "a number must not begin with 0");
    if (!scan_digits(scan))
        return false;
    if (*scan->at == '.') {
        scan->at++;
        if (!scan_digits(scan))
            return false;
    }
    if (*scan->at == 'e' || *scan->at == 'E') {
        scan->at++;
        if (*scan->at == '-' || *scan->at == '+')
            scan->at++;
        if (!scan_digits(scan))
            return false;
    }
    if (scan->at - begin > MAX_NUMBER_BYTES)
        return breach(scan, "a number is longer than 63 characters");
    if (!isfinite(strtod(begin, NULL)))
        return breach(scan, "a number is out of range");
    return true;
}

/* The four digits after "\u", or -1. */
static int hex4(const char *c) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef";
        const char lower = (char)(c[i] >= 'A' && c[i] <= 'F' ? c[i] - 'A' + 'a' : c[i]);
        const char *digit = lower != '\0' ? strchr(digits, lower) : NULL;
        if (digit == NULL)
            return -1;
        value = value * 16 + (int)(digit - digits);
    }
    return value;
}

static bool scan_unicode_escape(Scan *scan) {
    const int unit = hex4(scan->at + 2);
    if (unit < 0)
        return breach(scan, "\\u needs four hex digits");
    if (unit == 0)
        return breach(scan, "a string must not hold NUL");
    if (unit >= 0xDC00 && unit <= 0xDFFF)
        return breach(scan, "half a surrogate pair");
    scan->at += 6;
    if (unit < 0xD800 || unit > 0xDBFF)
        return true;
    const int low = scan->at[0] == '\\' && scan->at[1] == 'u' ? hex4(scan->at + 2) : -1;
    if (low < 0xDC00 || low > 0xDFFF)
        return breach(scan, "half a surrogate pair");
    scan->at += 6;
    return true;
}

static bool scan_escape(Scan *scan) {
    const char kind = scan->at[1];
    if (kind == 'u')
        return scan_unicode_escape(scan);
    if (kind == '\0' || strchr("\"\\/bfnrt", kind) == NULL)
        return breach(scan, "an unknown escape in a string");
    scan->at += 2;
    return true;
}

static bool scan_string(Scan *scan) {
    if (*scan->at != '"')
        return breach(scan, "a string is expected");
    scan->at++;
    while (*scan->at != '"') {
        if (scan->at == scan->end)
            return breach(scan, "a string does not end");
        if ((unsigned char)*scan->at < 0x20)
            return breach(scan, "a control character in a string");
        if (*scan->at == '\\') {
            if (!scan_escape(scan))
                return false;
            continue;
        }
        const size_t len = utf8_sequence(scan->at, (size_t)(scan->end - scan->at));
        if (len == 0)
            return breach(scan, "invalid UTF-8");
        scan->at += len;
    }
    scan->at++;
    return true;
}

static bool scan_value(Scan *scan);

static bool scan_member(Scan *scan) {
    skip_space(scan);
    if (!scan_string(scan))
        return false;
    skip_space(scan);
    if (*scan->at != ':')
        return breach(scan, "':' is expected");
    scan->at++;
    return scan_value(scan);
}

/* An object or an array, by its closing bracket. */
static bool scan_container(Scan *scan, char closing) {
    if (++scan->depth > JSON_MAX_DEPTH)
        return breach(scan, "nested deeper than 64");
    scan->at++;
    skip_space(scan);
    bool more = *scan->at != closing;
    while (more) {
        if (!(closing == '}' ? scan_member(scan) : scan_value(scan)))
            return false;
        more = *scan->at == ',';
        if (more)
            scan->at++;
    }
    if (*scan->at != closing)
        return breach(scan, closing == '}' ? "',' or '}' is expected" : "',' or ']' is expected");
    scan->at++;
    scan->depth--;
    return true;
}

static bool scan_word(Scan *scan) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const size_t len = strlen(words[i]);
        if (strncmp(scan->at, words[i], len) == 0) {
            scan->at += len;
            return true;
        }
    }
    return breach(scan, scan->at == scan->end ? "the text ends where a value is expected" : "a value is expected");
}

/* One value and the space around it. */
static bool scan_value(Scan *scan) {
    skip_space(scan);
    const char c = *scan->at;
    bool ok;
    if (c == '{')
        ok = scan_container(scan, '}');
    else if (c == '[')
        ok = scan_container(scan, ']');
    else if (c == '"')
        ok = scan_string(scan);
    else if (c == '-' || is_digit(c))
        ok = scan_number(scan);
    else
        ok = scan_word(scan);
    if (ok)
        skip_space(scan);
    return ok;
}

Status json_check(const char *text, size_t nbytes, const char *what, Status whose) {
    Scan scan = {.at = text, .end = text + nbytes};
    if (scan_value(&scan) && scan.at != scan.end)
        scan.rule = "text after the value";
    if (scan.rule != NULL)
        return STATUS_FAIL(whose, "%s: byte %zu: %s", what, (size_t)(scan.at - text), scan.rule);
    return STATUS_OK;
}
