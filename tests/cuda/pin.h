/* Start-up of a device that rounds operands, for programs of one rank. Header only, because each is one file. */
#ifndef DMUON_TESTS_CUDA_PIN_H
#define DMUON_TESTS_CUDA_PIN_H

#include "base/arena.h"
#include "base/fatal.h"
#include "device/products.h"

/* Chooses and pins the products of the list, and ends it. */
static inline void pin_products(Device *device, ProductList *list) {
    unsigned char *choices = HEAP_ALLOC(unsigned char, device_choice_nbytes(device, list->count));
    if (device_choose_products(device, list, choices) != STATUS_OK ||
        device_pin_products(device, list, choices) != STATUS_OK)
        fatal("%s", status_trail());
    heap_free(choices);
    products_deinit(list);
}

#endif
