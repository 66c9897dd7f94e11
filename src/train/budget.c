/* Wall-time arithmetic. */
#include "train/budget.h"

#include "base/clock.h"

#define SAVE_GUESS_S 60.0

void budget_init(Budget *budget, double job_start_s, double max_wall_s) {
    *budget = (Budget){.end_s = max_wall_s > 0 ? job_start_s + max_wall_s : 0};
}

void budget_saw_step(Budget *budget, double seconds) {
    if (seconds > budget->longest_step_s)
        budget->longest_step_s = seconds;
}

void budget_saw_save(Budget *budget, double seconds) {
    if (!budget->saved || seconds > budget->longest_save_s)
        budget->longest_save_s = seconds;
    budget->saved = true;
}

bool budget_spent_at(const Budget *budget, double now_s) {
    if (budget->end_s <= 0)
        return false;
    const double save_s = budget->saved ? budget->longest_save_s : SAVE_GUESS_S;
    return budget->end_s - now_s < budget->longest_step_s + 2 * save_s;
}

bool budget_spent(const Budget *budget) {
    return budget_spent_at(budget, clock_wall_s());
}
