/* The wall-time budget: stop while there is still time for a step and two saves. */
#ifndef DMUON_TRAIN_BUDGET_H
#define DMUON_TRAIN_BUDGET_H

#include <stdbool.h>

typedef struct Budget {
    double end_s;                          /* seconds since 1970; 0: no limit */
    double longest_step_s, longest_save_s; /* seen so far                      */
    bool saved;
} Budget;

void budget_init(Budget *budget, double job_start_s, double max_wall_s);
void budget_saw_step(Budget *budget, double seconds);
void budget_saw_save(Budget *budget, double seconds);
/* Less is left than the longest step plus twice the longest save (60 s before any save). */
bool budget_spent(const Budget *budget);
/* The same for a given time. */
bool budget_spent_at(const Budget *budget, double now_s);

#endif
