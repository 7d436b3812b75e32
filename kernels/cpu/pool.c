/* pool.c - a persistent thread pool: the caller works too, helpers spin a little, then sleep.
 *
 *   ticket (32 bits)  | region number : 24 | threads of this region : 8 |
 *
 *   caller   sets fn, job, next, left; then ticket; works; waits for left == 0
 *   helper i waits for another ticket; takes part when i < its low byte, else waits again
 *
 * Invariants:
 *   1. fn, job and next change only while left == 0, that is while no helper is inside a region.
 *      The thread count is read from the ticket itself, so a helper that wakes late never joins a
 *      region that did not count it.
 *   2. One region at a time. A second caller (another Python thread, or fn itself) finds the lock
 *      taken and runs its range alone: slower, never deadlocked.
 *   3. After fork the child has no helpers: the handler resets the pool, the next region starts
 *      new ones.
 *
 * An empty region costs 0.4 us awake, 5 us asleep (under a hypervisor some 50); a wait spins SPINS
 * pauses (some 100 us) first: longer than the ops between two regions of a step. With 200 pauses
 * two threads decoded no faster than one; with 2,000 1.8 times as fast (RESULTS.md).
 */
#define _GNU_SOURCE
#include "pool.h"

#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 2000 };

static struct {
    _Alignas(64) _Atomic uint32_t ticket;
    _Alignas(64) _Atomic uint32_t left; /* helpers still inside the region */
    _Alignas(64) _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic long next; /* first row nobody took yet */
    _Alignas(64) pool_fn fn;
    void *job;
    long items, grain;
} pool;

static pthread_mutex_t region_lock = PTHREAD_MUTEX_INITIALIZER;
static int started = 1;
static __thread int inside;

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word) {
    if (atomic_load(&pool.sleepers))
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* The new value of a word that held `old`. */
static uint32_t wait_change(_Atomic uint32_t *word, uint32_t old) {
    uint32_t value;
    for (int i = 0; i < SPINS; i++) {
        if ((value = atomic_load_explicit(word, memory_order_acquire)) != old) return value;
        _mm_pause();
    }
    atomic_fetch_add(&pool.sleepers, 1);
    while ((value = atomic_load(word)) == old) futex_wait(word, old);
    atomic_fetch_sub(&pool.sleepers, 1);
    return value;
}

static void take_pieces(void) {
    for (;;) {
        const long begin = atomic_fetch_add_explicit(&pool.next, pool.grain, memory_order_relaxed);
        if (begin >= pool.items) return;
        const long end = begin + pool.grain;
        pool.fn(pool.job, begin, end < pool.items ? end : pool.items);
    }
}

static void *helper(void *argument) {
    const uint32_t index = (uint32_t)((uintptr_t)argument >> 32);
    uint32_t ticket = (uint32_t)(uintptr_t)argument;
    inside = 1;
    for (;;) {
        ticket = wait_change(&pool.ticket, ticket);
        if (index >= (ticket & 0xff) + 1) continue;
        take_pieces();
        if (atomic_fetch_sub(&pool.left, 1) == 1) futex_wake_all(&pool.left);
    }
    return NULL;
}

/* Helpers for a region of so many threads; gives what the machine allowed. Signals stay with
 * Python's own threads. */
static int start_helpers(int threads) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; started < threads; started++) {
        const uintptr_t argument = (uintptr_t)started << 32 | atomic_load(&pool.ticket);
        pthread_t thread;
        if (pthread_create(&thread, NULL, helper, (void *)argument)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started < threads ? started : threads;
}

void pool_for(int threads, long items, long grain, pool_fn fn, void *job) {
    if (threads > POOL_MAX_THREADS) threads = POOL_MAX_THREADS;
    if ((items + grain - 1) / grain < threads) threads = (int)((items + grain - 1) / grain);
    if (threads < 2 || inside || pthread_mutex_trylock(&region_lock)) {
        fn(job, 0, items);
        return;
    }
    threads = start_helpers(threads);
    pool.fn = fn;
    pool.job = job;
    pool.items = items;
    pool.grain = grain;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.left, (uint32_t)(threads - 1));
    const uint32_t region = (atomic_load(&pool.ticket) >> 8) + 1;
    atomic_store(&pool.ticket, region << 8 | (uint32_t)(threads - 1));
    futex_wake_all(&pool.ticket);
    inside = 1;
    take_pieces();
    for (uint32_t left; (left = atomic_load_explicit(&pool.left, memory_order_acquire));)
        wait_change(&pool.left, left);
    inside = 0;
    pthread_mutex_unlock(&region_lock);
}

int pool_started(void) { return started; }

static void reset_in_child(void) {
    started = 1;
    inside = 0;
    pool.sleepers = 0;
    pool.left = 0;
    pthread_mutex_init(&region_lock, NULL);
}

__attribute__((constructor)) static void register_fork_handler(void) {
    pthread_atfork(NULL, NULL, reset_in_child);
}
