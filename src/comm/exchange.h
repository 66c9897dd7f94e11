/* The collectives that only move bytes. All without a copy: pieces arrive where they belong. */
#ifndef DMUON_COMM_EXCHANGE_H
#define DMUON_COMM_EXCHANGE_H

#include "comm/collective.h"

void exchange_broadcast(const Collective *c); /* c->dst [n] of the root to all */
void exchange_gather(const Collective *c);    /* the root's own part is in place already */
void exchange_scatter(const Collective *c);   /* likewise */
/* c->dst [total] is cut into runs of `run` elements (the last ones short or empty); each rank's own is in place
 * already. */
void exchange_all_gather_runs(const Collective *c, int64_t total, int64_t run);

#endif
