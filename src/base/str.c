#include "base/str.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"

static void reserve(Str *str, size_t more) {
    const size_t needed = str->len + more + 1;
    if (needed <= str->capacity)
        return;
    size_t capacity = str->capacity > 0 ? str->capacity : 64;
    while (capacity < needed)
        capacity *= 2;
    str->text = heap_realloc(str->text, capacity);
    str->capacity = capacity;
}

void str_append_n(Str *str, const char *bytes, size_t nbytes) {
    reserve(str, nbytes);
    if (nbytes > 0)
        memcpy(str->text + str->len, bytes, nbytes);
    str->len += nbytes;
    str->text[str->len] = '\0';
}

void str_append(Str *str, const char *text) {
    str_append_n(str, text, strlen(text));
}

void str_printf(Str *str, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    const int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    DM_ASSERT(len >= 0);
    reserve(str, (size_t)len);
    (void)vsnprintf(str->text + str->len, (size_t)len + 1, fmt, again);
    va_end(again);
    str->len += (size_t)len;
}

void str_clear(Str *str) {
    str->len = 0;
    if (str->text != NULL)
        str->text[0] = '\0';
}

void str_deinit(Str *str) {
    heap_free(str->text);
    *str = (Str){0};
}

void str_format(char *buf, size_t capacity, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const int len = vsnprintf(buf, capacity, fmt, args);
    va_end(args);
    DM_ASSERT(len >= 0 && (size_t)len < capacity);
}

void str_path_join(char *buf, size_t capacity, const char *a, const char *b) {
    if (b[0] == '/' || a[0] == '\0')
        str_format(buf, capacity, "%s", b);
    else
        str_format(buf, capacity, "%s%s%s", a, str_ends_with(a, "/") ? "" : "/", b);
}

const char *str_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

bool str_starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool str_ends_with(const char *text, const char *suffix) {
    const size_t len = strlen(text);
    const size_t tail = strlen(suffix);
    return len >= tail && strcmp(text + len - tail, suffix) == 0;
}

/* The value of a digit, or 99. */
static uint64_t digit_value(char c) {
    if (c >= '0' && c <= '9')
        return (uint64_t)(c - '0');
    if (c >= 'a' && c <= 'f')
        return (uint64_t)(c - 'a') + 10;
    if (c >= 'A' && c <= 'F')
        return (uint64_t)(c - 'A') + 10;
    return 99;
}

/* All of `digits` in `base`, at most `limit`. */
static bool parse_digits(const char *digits, uint64_t base, uint64_t limit, uint64_t *value) {
    if (*digits == '\0')
        return false;
    uint64_t sum = 0;
    for (const char *c = digits; *c != '\0'; c++) {
        const uint64_t digit = digit_value(*c);
        if (digit >= base || digit > limit || sum > (limit - digit) / base)
            return false;
        sum = sum * base + digit;
    }
    *value = sum;
    return true;
}

bool str_parse_int(const char *text, int64_t *value) {
    uint64_t magnitude = 0;
    if (str_starts_with(text, "0x") || str_starts_with(text, "0o")) {
        if (!parse_digits(text + 2, text[1] == 'x' ? 16 : 8, INT64_MAX, &magnitude))
            return false;
        *value = (int64_t)magnitude;
        return true;
    }
    const bool negative = text[0] == '-';
    const char *digits = text + (negative || text[0] == '+');
    if (!parse_digits(digits, 10, (uint64_t)INT64_MAX + negative, &magnitude))
        return false;
    *value = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

static const char *skip_digits(const char *c) {
    while (*c >= '0' && *c <= '9')
        c++;
    return c;
}

/* [-+]? ( \.[0-9]+ | [0-9]+(\.[0-9]*)? ) ([eE][-+]?[0-9]+)?, the whole text. */
static bool is_decimal(const char *text) {
    const char *whole = text + (*text == '-' || *text == '+');
    const char *c = skip_digits(whole);
    const bool has_whole = c > whole;
    if (*c == '.') {
        const char *fraction = ++c;
        c = skip_digits(fraction);
        if (!has_whole && c == fraction)
            return false;
    } else if (!has_whole) {
        return false;
    }
    if (*c == 'e' || *c == 'E') {
        c++;
        c += *c == '-' || *c == '+';
        const char *exponent = c;
        c = skip_digits(exponent);
        if (c == exponent)
            return false;
    }
    return *c == '\0';
}

bool str_parse_double(const char *text, double *value) {
    if (!is_decimal(text)) {
        int64_t whole = 0; /* 0x and 0o */
        if (!str_parse_int(text, &whole))
            return false;
        *value = (double)whole;
        return true;
    }
    const double parsed = strtod(text, NULL); /* the C locale: the tree never calls setlocale */
    if (!isfinite(parsed))
        return false;
    *value = parsed;
    return true;
}

static int min3(int a, int b, int c) {
    const int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

int str_distance(const char *a, const char *b) {
    const size_t width = strlen(b);
    int *row = HEAP_ALLOC(int, width + 1); /* distances of the prefix of `a` to every prefix of `b` */
    for (size_t j = 0; j <= width; j++)
        row[j] = (int)j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 1; j <= width; j++) {
            const int replaced = diagonal + (a[i] != b[j - 1]);
            diagonal = row[j];
            row[j] = min3(replaced, row[j] + 1, row[j - 1] + 1);
        }
    }
    const int distance = row[width];
    heap_free(row);
    return distance;
}
