/* pool.h - threads that wait for a range of rows to share.
 *
 * pool_for runs fn over [0, items) in pieces of `grain`, on the caller and up to threads - 1
 * helpers, and returns when all pieces are done. Which thread takes which piece is left to
 * chance: a kernel writes different rows in different pieces and never reduces across them, so
 * the bits do not depend on it.
 */
#ifndef LOCKSTEP_POOL_H
#define LOCKSTEP_POOL_H

enum { POOL_MAX_THREADS = 256 };

typedef void (*pool_fn)(void *job, long begin, long end);

void pool_for(int threads, long items, long grain, pool_fn fn, void *job);
/* Items of one piece, so that it holds some `work` operations of which an item takes `per_item`. */
static inline long pool_grain(long work, long per_item) { return 1 + work / (per_item + 1); }

int pool_started(void); /* threads alive in this process, the caller included */

#endif
